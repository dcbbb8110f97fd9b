"""How much is offered: rates with a short memory.

Counting is one addition, because every request is counted; what it makes of the rates is computed when they are asked
for, which is once a batch or near saturation.
"""

from __future__ import annotations

from math import exp
from typing import Final


class DeadlineBands:
    """What is offered, by the time it comes with: requests in a hurry delay those that are not.

    A band is a power of two of the distance from arrival to deadline.

    Args:
        memory_ns: of the rates.
    """

    __slots__ = ("_at_ns", "_memory_ns", "_per_ns", "pending")

    def __init__(self, memory_ns: int) -> None:
        self._memory_ns: Final = memory_ns
        self.pending: dict[int, float] = {}
        """Units since the rates were asked for last, by the bits of their distance."""
        self._per_ns: dict[int, float] = {}
        self._at_ns = 0

    def count(self, units: float, distance_ns: int) -> None:
        """Counts what is offered now.

        Args:
            units: how much.
            distance_ns: from now to its deadline.
        """
        band = distance_ns.bit_length() if distance_ns > 0 else 0
        self.pending[band] = self.pending.get(band, 0.0) + units

    def rates(self, distance_ns: int, now_ns: int) -> tuple[float, float]:
        """What is offered, units a nanosecond: in all, and in the bands below that of `distance_ns`."""
        self._fold(now_ns)
        rates = self._per_ns
        total = sum(rates.values())
        if len(rates) < 2:
            return total, 0.0
        own = distance_ns.bit_length() if distance_ns > 0 else 0
        return total, sum([rate for band, rate in rates.items() if band < own])

    def _fold(self, now_ns: int) -> None:
        passed_ns = now_ns - self._at_ns
        if passed_ns <= 0:
            return
        self._at_ns = now_ns
        left = exp(-passed_ns / self._memory_ns)
        share = (1 - left) / passed_ns
        pending = self.pending
        rates = self._per_ns
        for band in rates:
            rates[band] *= left
        for band, units in pending.items():
            rates[band] = rates.get(band, 0.0) + share * units
        pending.clear()
