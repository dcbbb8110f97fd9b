"""Batches: cut by the policy when the executor's gate is open, answered when they come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.batching import Dispatch
from trioserve.execution import StageBatch
from trioserve.request import NEVER_NS
from trioserve_protocol import CutReason, ErrorCode

from ._abandon import abandon_dead, give_back
from ._batch import Batch
from ._lane import Lane
from ._occupancy import Occupancy
from ._stage import Link, Stage

if TYPE_CHECKING:
    from collections.abc import Collection

    from trioserve.execution import StageResult

    from ._terminal import Terminal

MAX_WAIT_NS: Final = 2_000_000
"""The longest that a batch is put off because a more urgent model waits for more rows, all its waits together."""


class Executor(Stage[Lane, Batch]):
    """The stage that runs models.

    Args:
        lanes: the models it runs, in the worker's order.
        terminal: answers requests.
    """

    def __init__(self, lanes: list[Lane], terminal: Terminal) -> None:
        super().__init__(lanes, terminal)
        self.occupancy: Final = Occupancy()
        if lanes:
            self.occupancy.lost(lanes[0].clock.now_ns())
        self._back_ns = 0
        """When a batch came back last."""
        self._put_off_ns = NEVER_NS
        """Since when a batch is put off for a more urgent model."""
        for lane in lanes:
            lane.scheduler.occupancy = self.occupancy
            lane.door.neighbours = [other for other in lanes if other is not lane]

    @property
    def free_ns(self) -> int:
        """When the worker is expected to have finished all that it has."""
        return self.occupancy.free_ns[0]

    def part_with(self, lanes: Collection[Lane]) -> None:
        """See `Stage.part_with`; those that stay are alone with one another."""
        super().part_with(lanes)
        for lane in self.lanes:
            lane.door.neighbours = [other for other in self.lanes if other is not lane]

    def attach(self, link: Link) -> None:
        """A worker has become ready: its models are open."""
        super().attach(link)
        if not self.lanes:
            return
        now_ns = self.lanes[0].clock.now_ns()
        self.occupancy.back(now_ns)
        self._open_doors(now_ns)
        for lane in self.lanes:
            if lane.closed_code is ErrorCode.LOADING:  # not one that drains, or whose tokenizer is gone
                lane.closed_code = ErrorCode.OK

    def lose(self, reason: str, unsent: Batch | None = None, *, is_over: bool = False) -> None:
        """See `Stage.lose`; until there is another worker, only those are admitted who have time for that."""
        if self.link is not None and self.lanes:
            now_ns = self.lanes[0].clock.now_ns()
            self.occupancy.lost(now_ns)
            self._open_doors(now_ns)
        super().lose(reason, unsent, is_over=is_over)

    def _open_doors(self, now_ns: int) -> None:
        """Who was refused before says nothing of who comes now, and what is calm is another thing."""
        for door in [lane.door for lane in self.lanes]:
            door.reopen()
            door.settle(now_ns)

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
            if lane.slots.has_ghosts and link is not None:
                abandon_dead(link, self._with_worker.values(), lane)
        if self.held:
            return
        while link is not None and link is self.link and link.in_flight < link.depth:
            chosen = self._most_urgent(now_ns)
            if chosen is None:
                return
            lane, decision = chosen
            if decision.drop:
                self._drop(lane, decision.drop, now_ns)
            if decision.rows and lane.queue.rows:
                self._cut(link, lane, decision, now_ns)

    def _most_urgent(self, now_ns: int) -> tuple[Lane, Dispatch] | None:
        """Of the models that a batch should be cut of now, the one whose head has the earliest key.

        A model that waits for more rows lets a batch of another go first if it has time for that; else its wait ends.
        None while a more urgent one waits for so short a time that the executor should rather be kept for it.
        """
        chosen: tuple[Lane, Dispatch] | None = None
        waiting: list[Lane] = []
        for lane in self.lanes:
            if not lane.queue.rows:
                continue
            decision = lane.decide(now_ns)
            if not isinstance(decision, Dispatch):
                lane.wake_ns = decision.at_ns
                waiting.append(lane)
            elif chosen is None or _urgency(lane) < _urgency(chosen[0]):
                chosen = lane, decision
        if chosen is not None and chosen[1].rows:
            pressed = [lane for lane in waiting if _has_no_time(lane, *chosen, now_ns)]
            if pressed:
                lane = min(pressed, key=_urgency)
                rows = min(lane.queue.outlook(lane.max_rows)[0], lane.scheduler.full_rows)
                return lane, Dispatch(rows, CutReason.SLACK)
            first, until_ns = _urgency(chosen[0]), min(self._put_off_ns, now_ns) + MAX_WAIT_NS
            if any(lane.wake_ns <= until_ns and _urgency(lane) < first for lane in waiting):
                self._put_off_ns = min(self._put_off_ns, now_ns)
                return None
        return chosen

    def _drop(self, lane: Lane, rows: int, now_ns: int) -> None:
        """Answers those at the head of a queue who could only be answered too late."""
        for first, count in lane.queue.peek(rows, lane.slots.row_counts):
            for slot in lane.slots.live_in(first, count).tolist():
                if lane.was_promised(slot):
                    lane.scheduler.dropped(1, now_ns)
                self._terminal.fail(lane, slot, ErrorCode.DEADLINE_IN_QUEUE)

    def _cut(self, link: Link, lane: Lane, decision: Dispatch, now_ns: int) -> None:
        queue, scheduler = lane.queue, lane.scheduler
        rows, suspect = decision.rows, None
        if lane.door.quarantine.is_active:
            rows, suspect = lane.door.quarantine.isolate(lane, rows, self._terminal, now_ns)
            if not rows:
                return
        self._put_off_ns = NEVER_NS
        head_ns = scheduler.head_ns
        ranges = queue.take(rows, lane.slots.row_counts)
        if scheduler.returns.active:
            readies_ns = lane.slots.readies_ns
            came_ns = np.concatenate([readies_ns[first : first + count] for first, count in ranges])
            scheduler.bursts.observe(sorted(came_ns.tolist()))
        self._sequence += 1
        batch = Batch(lane, self._sequence, ranges, decision.reason, now_ns)
        batch.suspect = suspect
        lengths, batch.units = lane.measure(ranges, batch.rows)
        batch.head_ns = head_ns
        batch.cut = scheduler.started(batch.units, head_ns, 0, now_ns)
        batch.predicted_ns = batch.cut.predicted_ns
        if batch.rows < lane.max_rows and not queue.rows:
            lane.door.room.was_there(batch.predicted_ns)
        lane.after_cut(ranges)
        lane.stats.count_cut(batch.rows, decision.reason)
        self._send(
            link,
            batch,
            StageBatch(self.number_of[lane], batch.number, tuple(ranges), lengths, None),
        )

    def _died(self, running: Batch, *, killed: bool) -> None:
        """The worker was lost while it ran this batch."""
        lane = running.lane
        lane.door.quarantine.blame(lane, running.ranges, lane.clock.now_ns(), killed=killed)

    def skipped(self, number: int) -> None:
        """The worker will not begin a batch that it was told to abandon."""
        batch = self._with_worker.get(number)
        if batch is not None and batch.abandoned:
            give_back(batch, self._terminal)

    def _complete(self, work: Batch, result: StageResult, now_ns: int) -> None:
        lane, cut, scheduler = work.lane, work.cut, work.lane.scheduler
        if cut is None:
            raise AssertionError("a batch came back that was not started: this is a bug")
        if work.ranges:
            lane.stats.count_completion(work, result)
        if work.suspect is not None and result.code != ErrorCode.CANCELLED:
            lane.door.quarantine.clear(work.suspect)
        deadlines_ns: list[int] = []
        if cut.near or now_ns >= work.head_ns or scheduler.is_tense(now_ns):
            column = lane.slots.deadlines_ns
            for first, count in work.ranges:
                if lane.was_promised(first):
                    deadlines_ns += column[first : first + count].tolist()
        run_ns = result.finished_ns - result.started_ns
        # What it took besides, as the server sees it: hops and its own turn. The next one has to wait for that, too.
        way_ns = max(0, now_ns - max(work.cut_ns, self._back_ns) - run_ns)
        self._back_ns = now_ns
        is_lesson = not result.code or _took_longer(result, work, run_ns)
        scheduler.finished(cut, deadlines_ns, run_ns, now_ns, failed=not is_lesson, way_ns=way_ns)
        lane.door.reopen()
        if scheduler.learnt_ns == now_ns:
            lane.door.settle(now_ns)
        if work.ranges:
            self._terminal.finish(work, result, now_ns)

    def _put_back(self, work: Batch) -> None:
        """See `Stage._put_back`; whatever their class, these were next."""
        self._release(work)
        slots, queue = work.lane.slots, work.lane.queue
        for first, count in work.ranges:
            for slot in slots.live_in(first, count).tolist():
                queue.push(slot, slots.rows[slot], slots.deadline_ns[slot])

    def _may_wait(self, lane: Lane, first: int) -> bool:
        return lane.slots.deadline_ns[first] > self.free_ns

    def _give_up(self, work: Batch) -> None:
        """The worker was lost with this batch."""
        del work
        self.occupancy.in_flight[0] -= 1


def _took_longer(result: StageResult, work: Batch, run_ns: int) -> bool:
    """Whether a batch was ended because nobody waited for it any more, after longer than it was expected to take."""
    return result.code == ErrorCode.CANCELLED and 0 < work.lane.service.mean_ns(work.units) < run_ns


def _urgency(lane: Lane) -> tuple[int, int]:
    """What the models of an executor are ordered by."""
    queue = lane.queue
    return queue.head_key_ns, lane.slots.ready_ns[queue.head]


def _has_no_time(lane: Lane, other: Lane, decision: Dispatch, now_ns: int) -> bool:
    """Whether a model that waits for more rows is more urgent than another, and its head cannot wait that one out."""
    if _urgency(other) < _urgency(lane):
        return False
    scheduler = lane.scheduler
    run_ns = other.scheduler.ahead_ns(decision.rows)
    return scheduler.head_ns - now_ns < run_ns + 2 * scheduler.rule.full_ns
