"""Batches: cut by the policy when the executor's gate is open, answered when they come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.batching import Dispatch
from trioserve.execution import StageBatch
from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode

from ._abandon import abandon_dead, give_back
from ._batch import Batch
from ._lane import Lane
from ._stage import Link, Stage

if TYPE_CHECKING:
    from trioserve.execution import StageResult

    from ._terminal import Terminal


class Executor(Stage[Lane, Batch]):
    """The stage that runs models.

    Args:
        lanes: the models it runs, in the worker's order.
        terminal: answers requests.
    """

    def __init__(self, lanes: list[Lane], terminal: Terminal) -> None:
        super().__init__(lanes, terminal)
        self.free_ns = 0
        """When the worker is expected to have finished all that it has."""

    def attach(self, link: Link) -> None:
        """A worker has become ready: its models are open."""
        super().attach(link)
        self.free_ns = 0
        for lane in self.lanes:
            if lane.closed_code is ErrorCode.LOADING:  # not one that drains, or whose tokenizer is gone
                lane.closed_code = ErrorCode.OK

    @property
    def is_full(self) -> bool:
        """Whether it takes no batch before it has given one back; not while it has no worker."""
        return self.link is not None and self.link.in_flight >= self.link.depth

    def decide(self, now_ns: int) -> None:
        """Cuts every batch whose time has come."""
        link = self.link
        for lane in self.lanes:
            lane.wake_ns = NEVER_NS
            if lane.next_deadline_ns <= now_ns:
                self._terminal.expire(lane, now_ns)
            if lane.has_ghosts and link is not None:
                abandon_dead(link, self._with_worker.values(), lane)
        while link is not None and link is self.link and link.in_flight < link.depth:
            free_ns = self.free_ns if link.in_flight else 0
            chosen: tuple[Lane, Dispatch] | None = None
            for lane in self.lanes:
                if not lane.queue.rows:
                    continue
                decision = lane.policy.decide(lane.view(free_ns, now_ns), now_ns)
                if not isinstance(decision, Dispatch):
                    lane.wake_ns = decision.at_ns
                elif chosen is None or _waits_longer(lane, chosen[0]):
                    chosen = lane, decision
            if chosen is None:
                return
            self._cut(link, chosen[0], chosen[1], now_ns)

    def _cut(self, link: Link, lane: Lane, decision: Dispatch, now_ns: int) -> None:
        rows, suspect = decision.rows, None
        if lane.quarantine.is_active:
            rows, suspect = lane.quarantine.isolate(lane, rows, self._terminal, now_ns)
            if not rows:
                return
        ranges = lane.queue.take(rows, lane.slots.row_counts)
        self._sequence += 1
        batch = Batch(lane, self._sequence, ranges, decision.reason, now_ns)
        batch.suspect = suspect
        lengths, units = lane.measure(ranges, batch.rows)
        batch.units = units
        start_ns = max(now_ns, self.free_ns) if link.in_flight else now_ns
        batch.predicted_ns = self.free_ns = start_ns + int(lane.service.predict_ns(units))
        lane.after_cut(ranges)
        lane.stats.count_cut(batch.rows, decision.reason)
        self._send(
            link,
            batch,
            StageBatch(self.lanes.index(lane), batch.number, tuple(ranges), lengths, None),
        )

    def _died(self, running: Batch) -> None:
        lane = running.lane
        lane.quarantine.blame(lane, running.ranges, lane.clock.now_ns())

    def skipped(self, number: int) -> None:
        """The worker will not begin a batch that it was told to abandon."""
        batch = self._with_worker.get(number)
        if batch is not None and batch.abandoned:
            give_back(batch, self._terminal)

    def _complete(self, work: Batch, result: StageResult, now_ns: int) -> None:
        lane = work.lane
        lane.last_completion_ns = now_ns
        if not work.ranges:
            return
        lane.stats.count_completion(work, result)
        if work.suspect is not None and result.code != ErrorCode.CANCELLED:
            lane.quarantine.clear(work.suspect)
        if not result.code:
            lane.service.observe(work.units, result.finished_ns - result.started_ns)
        self._terminal.finish(work, result, now_ns)


def _waits_longer(lane: Lane, other: Lane) -> bool:
    return lane.slots.ready_ns[lane.queue.head] < other.slots.ready_ns[other.queue.head]
