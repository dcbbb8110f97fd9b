"""What a simulation found: every request and batch, and the figures that are asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trioserve_protocol import CutReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trioserve.engine import Scheduler

OK: Final = 0
LATE: Final = 1
"""Executed, but after its deadline."""

DROPPED: Final = 2
"""Admitted, and never executed."""

SHED: Final = 3


class BatchRecord(NamedTuple):
    """One batch. Instants are nanoseconds of virtual time."""

    start_ns: int
    finish_ns: int
    rows: int
    reason: CutReason
    executor: int
    predicted_ns: int
    """When it was expected to be finished."""
    left: int
    """Rows that were ready and stayed behind."""


@dataclass(frozen=True)
class Simulation:
    """Columns over the requests in order of arrival, and the batches in order of their start."""

    at_ns: NDArray[np.int64]
    deadline_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    """0 for those that were not executed."""
    state: NDArray[np.uint8]
    batches: tuple[BatchRecord, ...]
    scheduler: Scheduler
    """As it was in the end."""

    def between(self, from_s: float, to_s: float = float("inf")) -> Simulation:
        """The requests that arrived in a part of the time, with all batches."""
        part = (self.at_ns >= from_s * 1e9) & (self.at_ns < to_s * 1e9)
        return Simulation(
            self.at_ns[part],
            self.deadline_ns[part],
            self.finish_ns[part],
            self.state[part],
            self.batches,
            self.scheduler,
        )

    def count(self, state: int) -> int:
        """Requests that ended so."""
        return int(np.count_nonzero(self.state == state))

    @property
    def requests(self) -> int:
        """How many there were."""
        return len(self.at_ns)

    @property
    def ok(self) -> int:
        """Answered in time."""
        return self.count(OK)

    @property
    def late(self) -> int:
        """Executed, but too late."""
        return self.count(LATE)

    @property
    def dropped(self) -> int:
        """Admitted, but not executed."""
        return self.count(DROPPED)

    @property
    def shed(self) -> int:
        """Refused."""
        return self.count(SHED)

    @property
    def admitted(self) -> int:
        """Not refused."""
        return self.requests - self.shed

    @property
    def in_time(self) -> float:
        """Share of the requests that were answered in time."""
        return self.ok / max(1, self.requests)

    def goodput_per_s(self, from_s: float = 0.0, to_s: float | None = None) -> float:
        """Results in time a second.

        Args:
            from_s: start of the time in which they are counted, by when they are finished.
            to_s: its end; the last arrival if None.
        """
        end_s = float(self.at_ns[-1]) / 1e9 if to_s is None else to_s
        good = self.finish_ns[self.state == OK]
        counted = np.count_nonzero((good >= from_s * 1e9) & (good < end_s * 1e9))
        return float(counted) / (end_s - from_s)

    def latencies_ms(self) -> NDArray[np.float64]:
        """From arrival to result, milliseconds, of all that were executed."""
        done = self.finish_ns > 0
        return (self.finish_ns[done] - self.at_ns[done]) / 1e6

    def mean_latency_ms(self) -> float:
        """Mean of `latencies_ms`."""
        latencies = self.latencies_ms()
        return float(latencies.mean()) if latencies.size else float("nan")

    def latency_ms(self, percent: float) -> float:
        """A percentile of `latencies_ms`."""
        latencies = self.latencies_ms()
        return float(np.percentile(latencies, percent)) if latencies.size else float("nan")

    def mean_rows(self) -> float:
        """Rows of an average batch."""
        return float(np.mean([batch.rows for batch in self.batches])) if self.batches else 0.0

    def reasons(self) -> dict[str, int]:
        """Batches by the reason of their cut."""
        counts: dict[str, int] = {}
        for batch in self.batches:
            counts[batch.reason.name.lower()] = counts.get(batch.reason.name.lower(), 0) + 1
        return counts

    def sheds_that_left_room(self, max_rows: int) -> int:
        """Refused requests for which a batch with a free place started later and ended in their time.

        A place is free if a batch had fewer rows than fit and left none behind: one that was made smaller for its
        head's deadline had none.
        """
        with_room = [batch for batch in self.batches if batch.rows < max_rows and not batch.left]
        starts = np.array([batch.start_ns for batch in with_room], np.int64)
        finishes = np.array([batch.finish_ns for batch in with_room], np.int64)
        refused = self.state == SHED
        nearest = np.searchsorted(starts, self.at_ns[refused], side="right")
        known = nearest < len(starts)
        deadlines_ns = self.deadline_ns[refused][known]
        return int(np.count_nonzero(finishes[nearest[known]] <= deadlines_ns))
