"""What a drill is: a fault, what must happen, and a function that finds out whether it does."""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trioserve_tools.server_process import ServerProcess, server_process
from trioserve_tools.targets import Target, number

SERVED: Final = Path(__file__).parent / "served"
"""A model repository: `double`, `picky`, `slow`, `wide`."""


QUICK_STALL_S: Final = 0.5
QUICK_SOFT_S: Final = 0.5
QUICK_SECOND: Final = 0.3
QUICK_OPTIONS: Final = (
    f"limits.header_stall_s={QUICK_STALL_S}",
    f"limits.output_soft_s={QUICK_SOFT_S}",
)
"""Configuration of the short form's server."""


class NotRun(Exception):
    """A drill cannot be run here. `str()` says why."""


def root_of(error: BaseException) -> BaseException:
    """The first error in a group of errors, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(frozen=True, slots=True)
class Finding:
    """One value of a drill, and what it must be."""

    what: str
    value: float
    target: Target | None = None
    """None for a value that is only told."""

    unit: str = ""

    @property
    def held(self) -> bool:
        """Whether the value is what it must be."""
        return self.target is None or self.target.met_by(self.value)

    @property
    def promise(self) -> str:
        """What it must be, in words."""
        return f"{self.what} {self.target} {self.unit}".rstrip() if self.target else ""

    def __str__(self) -> str:
        return f"{self.what} {number(self.value)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Field:
    """What a drill is given."""

    count: int
    """How often it does what it does."""

    seed: int
    name: str
    quick: bool
    """Whether it is the short form: then what takes seconds by its nature takes less (`QUICK_OPTIONS`), and what
    depends on how busy this machine is gets told but not judged."""

    progress: Callable[[str], None]
    """Told what is going on."""

    server: ServerProcess
    """Serves `SERVED`. Other drills use it too: it must be left as it was found."""

    @property
    def seconds(self) -> float:
        """The count of a drill that counts seconds; the short form's are shorter."""
        return self.count * (QUICK_SECOND if self.quick else 1.0)

    @asynccontextmanager
    async def fresh_server(self, *settings: str) -> AsyncIterator[ServerProcess]:
        """A server that no drill has used before; the short form makes do with the shared one.

        Args:
            *settings: `KEY=VALUE` of its configuration; the short form has its own.
        """
        if self.quick:
            yield self.server
            return
        async with server_process(SERVED, *options(*settings)) as server:
            yield server
            await server.end()

    def timing(self, what: str, value: float, bound: float, unit: str) -> Finding:
        """A value with an upper bound that a busy machine can push it over."""
        return Finding(what, value, None if self.quick else Target("<=", bound), unit)

    def at_least(self, what: str, value: float, bound: float, unit: str = "") -> Finding:
        """A value with a lower bound that a busy machine can push it below."""
        return Finding(what, value, None if self.quick else Target(">=", bound), unit)

    def rng(self) -> random.Random:
        """A generator that depends on the seed and the drill, and on nothing else."""
        return random.Random(self.seed << 32 | zlib.crc32(self.name.encode()))  # noqa: S311  for repeating, not hiding


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault and how it is brought about."""

    name: str
    fault: str
    """What happens to the server."""

    must: str
    """What must come of it."""

    count: int
    """How often, in the full form."""

    quick_count: int
    """How often, in the short form."""

    run: Callable[[Field], Awaitable[Sequence[Finding]]]


def options(*settings: str) -> list[str]:
    """Settings as options of `trioserve serve`."""
    return [word for setting in settings for word in ("--set", setting)]


def none_of(what: str, value: float) -> Finding:
    """Something that must never happen."""
    return Finding(what, value, Target("=", 0))


def at_most(what: str, value: float, bound: float, unit: str = "") -> Finding:
    """A value with an upper bound."""
    return Finding(what, value, Target("<=", bound), unit)


def exactly(what: str, value: float, expected: float) -> Finding:
    """A value that is known beforehand."""
    return Finding(what, value, Target("=", expected))
