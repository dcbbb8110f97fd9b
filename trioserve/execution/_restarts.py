"""When a worker that died is started again: soon, later each time, and at last only now and then.

Pure: time and chance are arguments.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from trioserve.execution._spec import WorkerSpec

MAX_BACKOFF_S: Final = 10.0
"""Longest that the pause before a restart grows to, seconds."""

SPREAD: Final = 0.5
"""Part of a pause that is left to chance, so that workers which died together do not start together."""


class Pause(NamedTuple):
    """What follows a death."""

    seconds: float
    """Until the next start."""

    is_broken: bool
    """Whether the worker dies again and again: meanwhile its models are closed, and the next start is a trial."""


class Restarts:
    """The deaths of one worker.

    After `max_restarts` deaths within `restart_window_s` one more opens the breaker. Then there is one start each
    `retry_failed_s`; only a worker that lives for `restart_window_s` closes it again.

    Args:
        spec: Limits and pauses.
        random: Draws from [0, 1).
    """

    def __init__(self, spec: WorkerSpec, random: Callable[[], float]) -> None:
        self.is_broken = False
        """Whether the last death opened the breaker, and no worker has lived for long since."""
        self._spec: Final = spec
        self._random: Final = random
        self._deaths_s: Final[deque[float]] = deque()
        self._ready_s = float("inf")

    def ready(self, now_s: float) -> None:
        """A worker serves from now on."""
        self._ready_s = now_s

    def died(self, now_s: float) -> Pause:
        """It serves no more, or did not get that far."""
        spec, deaths_s = self._spec, self._deaths_s
        while deaths_s and now_s - deaths_s[0] >= spec.restart_window_s:
            deaths_s.popleft()
        on_trial = self.is_broken and not now_s - self._ready_s >= spec.restart_window_s
        self._ready_s = float("inf")
        deaths_s.append(now_s)
        self.is_broken = on_trial or len(deaths_s) > spec.max_restarts
        if self.is_broken:
            return Pause(self._spread(spec.retry_failed_s), is_broken=True)
        return Pause(self._spread(backoff_s(spec, len(deaths_s))), is_broken=False)

    def _spread(self, seconds: float) -> float:
        return seconds * (1 - SPREAD * self._random())


def backoff_s(spec: WorkerSpec, deaths: int) -> float:
    """Longest pause before the restart after so many deaths, seconds."""
    first_s = spec.restart_backoff_s
    return min(first_s * 2.0 ** min(deaths - 1, 32), max(first_s, MAX_BACKOFF_S))
