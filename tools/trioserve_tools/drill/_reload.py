"""A model that is reloaded under load, every other time with one that is broken."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from trioserve_protocol import ErrorCode
from trioserve_tools.server_process import server_process

from ._drill import SERVED, Field, Finding, exactly, none_of, options
from ._ledger import Ledger
from ._observe import fds_of, leaks
from ._traffic import traffic
from ._wire import wire

RATE: Final = 1_000.0
"""Requests a second: what is left of two processors must be enough to load a model, as it is when somebody reloads."""

CAPACITY: Final = 600_000
QUIET_S: Final = 0.5
"""Load without a change, before each."""

ANSWER_S: Final = 5.0
BROKEN: Final = '\n\nraise ValueError("a model that does not load")\n'


async def reload_under_load(field: Field) -> list[Finding]:
    """One server under load, whose model is replaced by others that compute the same, and by broken ones."""
    good = (SERVED / "double" / "model.py").read_text()
    windows: list[tuple[int, int]] = []
    surprises = 0
    with tempfile.TemporaryDirectory(prefix="trioserve-reload-") as folder:
        repository = Path(folder)
        shutil.copytree(SERVED / "double", repository / "double")
        admin = repository / "admin.sock"
        async with server_process(repository, *options(f"admin.unix_path={admin}")) as server:
            fds = await fds_of(server)
            async with traffic(server.port, RATE, field.rng(), CAPACITY) as load:
                for number in range(field.count):
                    is_broken = number % 2 == 1
                    text = good + BROKEN * is_broken + f"# change {number}\n"
                    (repository / "double" / "model.py").write_text(text)
                    await trio.sleep(QUIET_S)
                    began_ns = time.monotonic_ns()
                    outcome = await _reload(admin)
                    windows.append((began_ns, time.monotonic_ns()))
                    surprises += outcome != (ErrorCode.ABORTED if is_broken else ErrorCode.OK)
                    field.progress(f"change {number + 1} of {field.count}: {load.ledger.statuses()}")
                await trio.sleep(QUIET_S)
                await load.settle(ANSWER_S)
            leaked = await leaks(server, fds)
            await server.end()
    return _findings(field, load.ledger, windows, surprises, leaked)


async def _reload(admin: Path) -> int:
    """Orders a reload, by the server's admin socket; returns its status."""
    async with wire(admin) as asking:
        return (await asking.order({"op": "reload", "model": "double"})).status


def _findings(
    field: Field, ledger: Ledger, windows: Sequence[tuple[int, int]], surprises: int, leaked: int
) -> list[Finding]:
    sent_ns, ended_ns = ledger.sent_ns[ledger.issued], ledger.ended_ns[ledger.issued]
    latencies_ms = (ended_ns - sent_ns) / 1e6
    during: np.ndarray[Any, np.dtype[np.bool_]] = np.zeros(len(sent_ns), bool)
    for began_ns, over_ns in windows:
        during |= (sent_ns >= began_ns) & (sent_ns <= over_ns)
    p99_ms = [
        float(np.quantile(part, 0.99)) if len(part) else 0.0
        for part in (latencies_ms[~during], latencies_ms[during])
    ]
    errors = len(sent_ns) - ledger.count(ErrorCode.OK) - ledger.unanswered
    return [
        none_of("errors", errors),
        none_of("unanswered", ledger.unanswered),
        none_of("duplicate or wrong", ledger.duplicates + ledger.wrong),
        none_of("changes that did not end as they must", surprises),
        none_of("leaked", leaked),
        field.timing("p99 during a change, of that without", p99_ms[1] / max(p99_ms[0], 1e-9), 1.3, "x"),
        Finding("p99 without a change", p99_ms[0], None, "ms"),
        Finding("p99 during a change", p99_ms[1], None, "ms"),
        Finding(
            "time of a change, mean",
            float(np.mean([over - began for began, over in windows])) / 1e9,
            None,
            "s",
        ),
        exactly("changes", len(windows), field.count),
        Finding("requests", len(sent_ns)),
    ]
