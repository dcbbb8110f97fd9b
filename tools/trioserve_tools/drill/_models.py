"""Models that the drills of the scheduler serve: sleepers of known service time, and MiniLM."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from trioserve_protocol import RequestClass
from trioserve_tools.minilm import build_repository
from trioserve_tools.minilm._graph import Layout
from trioserve_tools.server_process import ServerFailed, ServerProcess, server_process
from trioserve_tools.wheels import WheelError

from ._drill import Field, NotRun, root_of
from ._paced import template
from ._script import Template
from ._wire import wire

_SLEEPER: Final = Path(__file__).parent / "sleeper"
REQUESTS: Final = 16
"""Different requests: enough that a server that mixes up its answers is caught."""

MINILM: Final = Path(".cache/models")
WHEELS: Final = Path(".cache/wheels")

_TOML: Final = """\
name = "{name}"
backend = "python"
file = "model.py"
slots = {slots}
default_deadline_ms = {sla_ms}
args = {{ fixed_s = {fixed_s}, per_row_s = {per_row_s} }}

[batching]
max_rows = {max_rows}
{batching}"""


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A model that sleeps `fixed_ms + per_row_ms * rows`."""

    name: str
    fixed_ms: float
    per_row_ms: float
    sla_ms: float = 2000.0
    """Default deadline of its requests."""

    max_rows: int = 32
    slots: int = 1024
    policy: str = ""
    """Of its batching; the server's own if empty."""

    window_ms: float | None = None
    """Of its batching; the server's own if there is none."""

    def write(self, repository: Path) -> None:
        """Makes its folder."""
        folder = repository / self.name
        folder.mkdir()
        shutil.copy(_SLEEPER / "model.py", folder)
        batching = f'policy = "{self.policy}"\n' if self.policy else ""
        batching += "" if self.window_ms is None else f"window_ms = {self.window_ms}\n"
        text = _TOML.format(
            name=self.name,
            slots=self.slots,
            sla_ms=self.sla_ms,
            fixed_s=self.fixed_ms / 1e3,
            per_row_s=self.per_row_ms / 1e3,
            max_rows=self.max_rows,
            batching=batching,
        )
        (folder / "model.toml").write_text(text)


@contextmanager
def _repository(models: Sequence[Sleeper]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trioserve-sleepers-") as folder:
        for model in models:
            model.write(Path(folder))
        yield Path(folder)


@asynccontextmanager
async def sleepers(*models: Sleeper) -> AsyncIterator[ServerProcess]:
    """A server of sleepers, which is told to end when the context does.

    Raises:
        NotRun: It does not know a policy that a model wants.
    """
    with _repository(models) as repository:
        try:
            async with server_process(repository) as server:
                yield server
                await server.end()
        except Exception as error:
            cause = root_of(error)
            if isinstance(cause, ServerFailed) and "batching.policy" in str(cause):
                raise NotRun("this server has one policy only") from None
            raise


def sleeper_requests(
    deadline_ms: float, request_class: RequestClass = RequestClass.CRITICAL
) -> list[Template]:
    """Requests of a sleeper, and how their answers begin.

    Args:
        deadline_ms: On the wire.
        request_class: Of all of them.
    """
    rows = np.random.default_rng(1).standard_normal((REQUESTS, 128), np.float32)
    return [
        template(row.tobytes(), row[:4].tobytes(), deadline_ms=deadline_ms, request_class=request_class)
        for row in rows
    ]


async def minilm_repository(
    field: Field, layout: Layout, sla_ms: float, folder: Path, *, max_tokens: int = 64
) -> Path:
    """MiniLM in a repository of its own, in which every request has a deadline.

    Args:
        field: The short form takes the model only if it has been built before.
        layout: Of its token rows.
        sla_ms: Default deadline.
        folder: Where the repository is made.
        max_tokens: Of a batch.

    Raises:
        NotRun: It is not to be had.
    """
    # Each layout has a folder of its own: the packed one's is what `make serve` serves.
    built, name = (
        (MINILM, "minilm") if layout == "packed" else (MINILM.with_name("models-padded"), "minilm_padded")
    )
    if field.quick and not (built / name).exists():
        raise NotRun("the model is not built: `make demo` does that")
    try:
        await trio.to_thread.run_sync(
            lambda: build_repository(built, wheels=WHEELS, name=name, layout=layout)
        )
    except (WheelError, ImportError) as error:
        raise NotRun(str(error)) from None
    made = folder / "minilm"
    shutil.copytree(built / name, made)
    text = (made / "model.toml").read_text()
    for old, new in (
        (f'name = "{name}"\n', 'name = "minilm"\n'),
        ("threads =", f"default_deadline_ms = {sla_ms}\nthreads ="),
        ("max_tokens = 64\n", f"max_tokens = {max_tokens}\n"),
    ):
        text = text.replace(old, new, 1)
    (made / "model.toml").write_text(text)
    return folder


async def statistics_of(port: int, model: str) -> dict[str, Any]:
    """What a server has counted of a model."""
    async with wire(port) as asking:
        models = (await asking.admin("statistics"))["models"]
    return next(one for one in models if one["model"] == model)
