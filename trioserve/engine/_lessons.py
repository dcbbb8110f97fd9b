"""When a model learns how long its batches take, and how it does where it refuses everything.

Nothing is learnt while nothing runs. A model that was slow for a while would be believed slow for ever if its clients'
deadlines were shorter than that. So now and then one of those is admitted as a probe, while nothing else is under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._occupancy import LONG_AGO_NS

if TYPE_CHECKING:
    from trioserve.batching import ServiceModel

REFRESH_NS: Final = 4_000_000
"""Least time between two lessons: models whose batches take less are learnt from a sample."""

PROBE_NS: Final = 100_000_000
"""Everything has been refused for so long when the first probe is admitted: much longer than any queue that is being
worked off, and short enough for a handful of probes to put a wrong belief right within a second."""

MOST_PROBE_NS: Final = 32 * PROBE_NS
"""Most time between two probes. Each one doubles it unless it takes less than was believed: a client that asks for
the impossible again and again must not keep the executor busy."""


class Lessons:
    """When something was learnt of one model, and when a probe is due."""

    __slots__ = ("_probe_after_ns", "_refused_ns", "is_probing", "learnt_ns")

    def __init__(self) -> None:
        self.learnt_ns = LONG_AGO_NS
        """When the last lesson was."""
        self.is_probing = False
        """Whether a probe is under way."""
        self._refused_ns = LONG_AGO_NS
        """Since when everything has been refused, or when the last probe was admitted."""
        self._probe_after_ns = PROBE_NS

    def is_stale(self, now_ns: int) -> bool:
        """Whether nothing has been learnt for a while."""
        return now_ns - self.learnt_ns > PROBE_NS

    def wants_probe(self, now_ns: int) -> bool:
        """Whether a request that would be refused is admitted as a probe; only while nothing is under way."""
        if self._refused_ns <= self.learnt_ns:
            self._refused_ns = now_ns
        if now_ns - self._refused_ns <= self._probe_after_ns:
            return False
        self._refused_ns = now_ns
        self._probe_after_ns = min(2 * self._probe_after_ns, MOST_PROBE_NS)
        self.is_probing = True
        return True

    def learn(self, service: ServiceModel, units: float, run_ns: int, way_ns: int, now_ns: int) -> bool:
        """A batch has come back; returns whether something was learnt from it.

        Args:
            service: what learns.
            units: of the batch.
            run_ns: how long it ran.
            way_ns: what it took besides.
            now_ns: the time of the event.
        """
        if now_ns - self.learnt_ns < REFRESH_NS:
            return False
        self.learnt_ns = now_ns
        if not self.is_probing:
            service.observe(units, run_ns, way_ns)
            return True
        self.is_probing = False
        if service.probe(units, run_ns, way_ns):
            self._probe_after_ns = PROBE_NS
        return True
