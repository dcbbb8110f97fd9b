"""When a worker has had its oldest batch for too long to be believed that it still works on it.

Nothing is polled: the watchdog is one more instant that the engine's timer may be set to, and there is none while the
worker has nothing to do.
"""

from __future__ import annotations

from typing import Final

from trioserve.request import NEVER_NS

FACTOR: Final = 10
"""A batch may take so many times what it is expected to take."""

UNKNOWN_NS: Final = 60_000_000_000
"""Least time for a batch of which nothing is known: the first one of a model that is not warmed up may compile."""

STALL_NS: Final = 250_000_000
"""A server that notices so much later than it wanted to has stood still itself, and its workers perhaps with it."""


class Watchdog:
    """Watches the oldest batch of one worker.

    Args:
        least_ns: the shortest time after which any batch is looked at.
    """

    __slots__ = ("_began_ns", "_least_ns", "look_ns")

    def __init__(self, least_ns: int) -> None:
        self.look_ns = NEVER_NS
        """When to look. May be too early, never too late; never while nothing is with the worker and was looked at."""
        self._least_ns: Final = least_ns
        self._began_ns = 0

    def begins(self, now_ns: int) -> None:
        """The worker can begin what is now its oldest batch."""
        self._began_ns = now_ns
        look_ns = now_ns + self._least_ns
        if look_ns < self.look_ns:  # noqa: PLR1730 - a comparison costs half of a call
            self.look_ns = look_ns

    def rest(self) -> None:
        """The worker has nothing to do, or is gone."""
        self.look_ns = NEVER_NS

    def overdue_ns(self, limit_ns: int, now_ns: int) -> int:
        """How long the worker has had its oldest batch if that is too long; else 0, and `look_ns` is set anew.

        Args:
            limit_ns: the longest that is believed.
            now_ns: the time of the event.
        """
        if now_ns - self.look_ns > STALL_NS:
            self._began_ns = now_ns
        due_ns = self._began_ns + limit_ns
        if due_ns > now_ns:
            self.look_ns = due_ns
            return 0
        self.look_ns = NEVER_NS
        return now_ns - self._began_ns


def limit_ns(least_ns: int, expected_ns: float) -> int:
    """The longest that a batch is believed to take.

    Args:
        least_ns: never less than this.
        expected_ns: what it is expected to take; 0 if that is not known.
    """
    return max(least_ns, int(FACTOR * expected_ns) or UNKNOWN_NS)
