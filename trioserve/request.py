"""Domain types that every room shares: the clock and the answers to a run."""

from __future__ import annotations

import time
from typing import Final, Protocol

import trio

NEVER_NS: Final = 2**63 - 1
"""An instant later than any: nothing is due."""


class Clock(Protocol):
    """The one source of time; policies get its readings as arguments and never read it themselves."""

    def now_ns(self) -> int:
        """Nanoseconds on a monotonic clock that all local processes share."""
        ...

    def to_trio(self, at_ns: int) -> float:
        """The same instant as a Trio deadline of the running loop."""
        ...


class MonotonicClock:
    """`CLOCK_MONOTONIC`: comparable between the processes of one machine, deaf to wall-clock changes."""

    now_ns = staticmethod(time.monotonic_ns)

    def to_trio(self, at_ns: int) -> float:
        """Trio's clock has an origin of its own, so the distance is carried over, not the reading."""
        return trio.current_time() + (at_ns - time.monotonic_ns()) / 1e9


class TrioClock:
    """Trio's own time in nanoseconds: virtual under `trio.testing.MockClock`."""

    def now_ns(self) -> int:
        """Trio time, rounded to whole nanoseconds."""
        return round(trio.current_time() * 1e9)

    def to_trio(self, at_ns: int) -> float:
        """The inverse of `now_ns`."""
        return at_ns / 1e9
