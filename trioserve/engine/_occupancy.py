"""What a scheduler assumes of its executors: when they will be free, and what a batch of so many rows costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trioserve.request import NEVER_NS

if TYPE_CHECKING:
    from trioserve.batching import ServiceModel

LONG_AGO_NS: Final = -(2**62)
LEAST_RESTART_NS: Final = 100_000_000
"""No worker is there again sooner."""


class Cut(NamedTuple):
    """What the scheduler wants to be told again when a batch has come back."""

    executor: int
    units: float
    predicted_ns: int
    near: bool
    """Whether its head had little time to spare."""


class Occupancy:
    """When the executors of one stage are expected to be free; shared by all models that they run.

    Args:
        executors: how many there are.
    """

    __slots__ = ("_back_ns", "_lost_ns", "free_ns", "in_flight", "last_start_ns", "since_ns")

    def __init__(self, executors: int = 1) -> None:
        self.free_ns = [0] * executors
        self.in_flight = [0] * executors
        self.last_start_ns = LONG_AGO_NS
        self.since_ns = LONG_AGO_NS
        """Since when they have been there; `NEVER_NS` while they are not. Who waited before had to."""
        self._lost_ns = 0
        self._back_ns = LEAST_RESTART_NS
        """How long it took the last time until they were there."""

    @property
    def idle(self) -> bool:
        """Whether an executor has nothing to do."""
        return 0 in self.in_flight and not self.is_away

    @property
    def is_away(self) -> bool:
        """Whether there is no worker."""
        return self.since_ns == NEVER_NS

    def lost(self, now_ns: int) -> None:
        """The worker is gone, or has not come yet."""
        self.since_ns, self._lost_ns = NEVER_NS, now_ns
        self.look(now_ns)

    def look(self, now_ns: int) -> None:
        """Expects a worker that is not there when the last one was; an overdue one after twice that, and so on."""
        if not self.is_away:
            return
        after_ns = self._back_ns
        while self._lost_ns + after_ns <= now_ns:
            after_ns *= 2
        self.free_ns = [self._lost_ns + after_ns] * len(self.free_ns)

    def away_ns(self, now_ns: int) -> int:
        """How long it is until the next worker is expected.

        If this one's is there, the one of another stage is gone, of which nothing is known.
        """
        if not self.is_away:
            return LEAST_RESTART_NS
        self.look(now_ns)
        return self.free_ns[0] - now_ns

    def back(self, now_ns: int) -> None:
        """There is a worker, which has nothing to do."""
        self._back_ns = max(LEAST_RESTART_NS, now_ns - self._lost_ns)
        self.since_ns = now_ns
        self.free_ns = [0] * len(self.free_ns)

    def started(self, executor: int, run_ns: float, now_ns: int) -> int:
        """An executor has been given a batch.

        Returns:
            When it is expected to be finished.
        """
        start_ns = max(now_ns, self.free_ns[executor]) if self.in_flight[executor] else now_ns
        self.in_flight[executor] += 1
        self.last_start_ns = now_ns
        finish_ns = self.free_ns[executor] = start_ns + int(run_ns)
        return finish_ns

    def finished(self, executor: int, predicted_ns: int, now_ns: int) -> None:
        """A batch has come back; what is behind it is as late as it was."""
        self.in_flight[executor] -= 1
        if self.in_flight[executor]:
            self.free_ns[executor] += now_ns - predicted_ns
        else:
            self.free_ns[executor] = now_ns


class ServiceByRows:
    """A service-time model in rows of a typical length; see `trioserve.batching.Service`.

    Args:
        model: in units.
    """

    def __init__(self, model: ServiceModel) -> None:
        self.model = model
        self.units_per_row = 1.0

    @property
    def known(self) -> bool:
        """Whether anything can be predicted."""
        return self.model.known

    @property
    def k(self) -> float:
        """Mean deviations from the mean to the quantile."""
        return self.model.k

    def mean_ns(self, units: float) -> float:
        """Expected run time of so many rows."""
        return self.model.mean_ns(units * self.units_per_row)

    def deviation_ns(self, units: float) -> float:
        """Its mean absolute deviation."""
        return self.model.deviation_ns(units * self.units_per_row)

    def quantile_ns(self, units: float) -> float:
        """The run time that it hardly exceeds."""
        return self.model.quantile_ns(units * self.units_per_row)
