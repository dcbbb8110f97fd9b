"""Requests that come in bursts: who else comes when the first of one is there.

A page that is opened, a fan-out, a poll: several requests close to each other, then nothing. Greedy serves the first
alone and lets the others wait for it. What is learnt is one profile: how likely a burst has a second, a third, ...
request, and how long after its first that one comes. Without bursts the profile is empty or too vague to act on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ._returns import GRACE_NS, PATIENCE, STEADY

GAIN: Final = 1 / 8
"""Weight of one burst."""

QUIET_NS: Final = 1_000_000
"""Time without an arrival after which the next one begins a burst. With half of that the bursts of a browser fall into
pieces; with twice of it they are not seen among the requests of others."""

LIKELY: Final = 0.5
"""Least chance of one more for it to be waited for. How much the wait is worth is weighed with the chance itself."""

MOST: Final = 32
"""Requests of a burst that are learnt."""


class Bursts:
    """The profile of one model's bursts."""

    __slots__ = ("_count", "_deviation_ns", "_first_ns", "_last_ns", "_likely", "_mean_ns")

    def __init__(self) -> None:
        self._first_ns = 0
        self._last_ns = -QUIET_NS
        self._count = MOST
        """Requests of the burst that was begun last; as many as are learnt while there was none."""
        self._likely = [0.0] * MOST
        """How likely a burst has a request of this number."""
        self._mean_ns = [0.0] * MOST
        """How long after the first it comes."""
        self._deviation_ns = [0.0] * MOST

    def observe(self, readies_ns: Sequence[int]) -> None:
        """Learns from requests that have come, each of which is shown once.

        Args:
            readies_ns: when they were ready, ascending.
        """
        for ready_ns in readies_ns:
            if ready_ns - self._last_ns >= QUIET_NS:
                for number in range(self._count, MOST):
                    self._likely[number] *= 1 - GAIN
                self._first_ns, self._count = ready_ns, 1
            elif self._count < MOST:
                self._learn(self._count, ready_ns - self._first_ns)
                self._count += 1
            self._last_ns = max(self._last_ns, ready_ns)

    def _learn(self, number: int, after_ns: int) -> None:
        self._likely[number] += GAIN * (1 - self._likely[number])
        mean_ns = self._mean_ns[number]
        if not mean_ns:
            self._mean_ns[number], self._deviation_ns[number] = float(max(1, after_ns)), after_ns / 2
            return
        self._mean_ns[number] = mean_ns + GAIN * (after_ns - mean_ns)
        self._deviation_ns[number] += GAIN * (abs(after_ns - mean_ns) - self._deviation_ns[number])

    def etas(self, oldest_ns: int, waiting: int, alpha_ns: float, now_ns: int) -> list[tuple[int, float]]:
        """When the rest of a burst is expected, soonest first, and how likely it comes.

        Args:
            oldest_ns: when the first of those that wait was ready.
            waiting: how many wait; none of them has been shown.
            alpha_ns: what a common batch saves.
            now_ns: the time of the event.
        """
        first_ns, seen = oldest_ns, waiting
        if oldest_ns - self._last_ns < QUIET_NS:
            first_ns, seen = self._first_ns, self._count + waiting
        if seen >= MOST:
            return []
        here = self._likely[seen - 1] if seen > 1 else 1.0
        etas = []
        for number in range(seen, MOST):
            likely, deviation_ns = self._likely[number], self._deviation_ns[number]
            if likely <= LIKELY * here or likely <= LIKELY / 2 or deviation_ns >= STEADY * alpha_ns:
                break
            expected_ns = first_ns + self._mean_ns[number]
            if now_ns > expected_ns + PATIENCE * deviation_ns + GRACE_NS:
                break  # it should have been here: this burst is over
            etas.append((int(expected_ns + deviation_ns), likely / here if here > likely else 1.0))
        return etas
