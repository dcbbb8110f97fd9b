"""The end of requests: the only code that answers them, and the accounts that close with it.

A request is answered by whoever claims its slot first: its batch, its deadline, its client's CANCEL, the loss of a
worker. Whoever comes later finds it claimed and sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode, Flag, Tag, Timing, code_of, error_frame, tlv

from ._batch import slot_at
from ._lane import MANY, SPECIAL
from ._replies import ReplyBlock, result_parts

if TYPE_CHECKING:
    from trioserve.execution import StageResult
    from trioserve.request import Clock

    from ._batch import Batch, Range
    from ._lane import Lane
    from ._session import Buffer, Session, SessionTable

JOIN_NBYTES: Final = 65_536
"""Replies of one session up to this size are joined and sent as one buffer; larger ones go out as their parts."""

Failures = dict[int, tuple[ErrorCode, str]]
"""First slot -> (ErrorCode, message) of the requests of a batch that failed."""


class Terminal:
    """Answers requests.

    Args:
        sessions: the sessions table.
        clock: read only for requests that ask for their timing.
        retry_after_us: when a client that was refused should come back.
    """

    def __init__(
        self,
        sessions: SessionTable,
        clock: Clock,
        retry_after_us: Callable[[Lane, ErrorCode], int],
    ) -> None:
        self._table: Final = sessions
        self._sessions: Final = sessions.by_index
        self._clock: Final = clock
        self._retry_after_us: Final = retry_after_us
        self._blocks: Final[dict[int, ReplyBlock]] = {}

    def add_lane(self, lane: Lane) -> None:
        """Prepares what replies of a model need."""
        self._blocks[id(lane)] = ReplyBlock(lane)

    def remove_lane(self, lane: Lane) -> None:
        """Forgets a model whose requests are all answered."""
        del self._blocks[id(lane)]

    # ---------------------------------------------------------------- one request

    def fail(self, lane: Lane, first: int, code: ErrorCode, message: str = "") -> None:
        """Answers one live request with an error, wherever it waits or runs.

        Args:
            lane: its model.
            first: its first slot.
            code: why.
            message: safe to send; what the code says need not be repeated.
        """
        session = self._drop(lane, first)
        if session is None:
            return
        lane.stats.count_error(code)
        if not session.closed:
            rid = lane.slots.rid[first]
            retry = self._retry_after_us(lane, code) if code.retryable else None
            session.sink.write_soon(error_frame(rid, code, message, retry_after_us=retry))

    def _drop(self, lane: Lane, first: int) -> Session | None:
        """Claims a request and closes its accounts; None if it was answered before."""
        slots = lane.slots
        rows, body_nbytes = slots.rows[first], slots.body_nbytes[first]
        held = slots.is_held_by_batch(first)
        if slots.is_live(first) and not held:
            lane.withdraw(first, rows)
        if not slots.claim(first):
            return None
        session = self._sessions[slots.session[first]]
        session.inflight -= 1
        if held:
            session.ghosts += 1
            self._abandon_arrival(lane, first)
        else:
            session.inflight_nbytes -= body_nbytes
            lane.gate.release(rows, body_nbytes)
        return session

    def _abandon_arrival(self, lane: Lane, first: int) -> None:
        arrival = lane.arrivals.get(first)
        if arrival is None:
            return
        lane.announced_rows -= lane.slots.rows[first]
        if arrival.answered():
            del lane.under_way[arrival]
            for start, _ in arrival.requests:
                del lane.arrivals[start]
            for start, count in arrival.ranges:
                self.let_go(lane, start, count)

    def expire(self, lane: Lane, now_ns: int) -> None:
        """Answers every request of a model whose deadline has passed, wherever it is."""
        slots = lane.slots
        live = slots.live_requests()
        deadlines_ns = slots.deadlines_ns[live]
        due = deadlines_ns <= now_ns
        for slot in live[due].tolist():
            running = lane.is_running(slot)
            code = ErrorCode.DEADLINE_AFTER_EXECUTION if running else ErrorCode.DEADLINE_IN_QUEUE
            if lane.waits_to_run(slot) and lane.was_promised(slot):
                lane.scheduler.dropped(1, now_ns)
            self.fail(lane, slot, code)
        later = deadlines_ns[~due]
        lane.next_deadline_ns = int(later.min()) if len(later) else NEVER_NS

    # ---------------------------------------------------------------- ranges

    def let_go(self, lane: Lane, first: int, count: int) -> None:
        """A batch, tokenizer or arrival drops its hold on a range: the rows of answered requests are free.

        Ghosts leave their session's credit, and the permits of everything answered return.
        """
        slots = lane.slots
        for slot in slots.answered_requests(first, count).tolist():
            session = self._sessions[slots.session[slot]]
            session.ghosts -= 1
            session.inflight_nbytes -= slots.body_nbytes[slot]
            lane.gate.release(slots.rows[slot], slots.body_nbytes[slot])
            if session.closed and not session.ghosts:
                self._table.ghosts_gone(session)
        slots.drop_batch(first, count)

    # ---------------------------------------------------------------- whole batches

    def finish(self, batch: Batch, result: StageResult, now_ns: int) -> None:
        """Answers a batch with its results, and frees its rows.

        Args:
            batch: as it was cut.
            result: as the worker sent it.
            now_ns: when that was read.
        """
        lane = batch.lane
        if lane.next_deadline_ns <= now_ns:
            self.expire(lane, now_ns)  # a result that comes at its deadline or later is late
        slots = lane.slots
        first, count = batch.ranges[0]
        block = self._blocks[id(lane)]
        plain = (
            len(batch.ranges) == 1
            and block.fits
            and not result.code
            and not result.failures
            and not slots.special[first // lane.max_rows]
            and slots.all_live(first, count)
        )
        if not plain:
            self._finish_each(batch, result, now_ns)
            return
        lane.stats.ok += count
        block.send(batch, self._sessions, now_ns)
        if lane.returns.active:
            self._await_return(lane, slots.sessions[first : first + count].tolist(), now_ns)
        slots.free_plain_batch(first, count)
        lane.gate.release(count, count * lane.body_nbytes)

    def fail_ranges(self, lane: Lane, ranges: Sequence[Range], code: ErrorCode, message: str) -> None:
        """Answers what is still unanswered of some ranges; the rows stay held until `let_go`."""
        for first, count in ranges:
            for slot in lane.slots.live_in(first, count).tolist():
                self.fail(lane, slot, code, message)

    def _finish_each(self, batch: Batch, result: StageResult, now_ns: int) -> None:
        lane = batch.lane
        if result.code:
            self.fail_ranges(lane, batch.ranges, known(result.code), result.message)
        failures = failed_requests(lane, batch.ranges, result)
        parts: dict[int, list[Buffer]] = {}
        answered: list[int] = []
        for first, count in batch.ranges:
            live = lane.slots.live_in(first, count).tolist()
            position = 0
            while position < len(live):
                slot = live[position]
                if slot in failures:
                    self.fail(lane, slot, *failures[slot])
                    position += 1
                    continue
                span = self._span(lane, live, position, failures)
                self._answer(batch, result, slot, span, parts, now_ns)
                answered += live[position : position + span]
                position += span
        self._close_answered(lane, answered)
        if answered and lane.returns.active:
            self._await_return(lane, [lane.slots.session[slot] for slot in answered], now_ns)
        for owner, buffers in parts.items():
            self._write(self._sessions[owner], buffers)
        for first, count in batch.ranges:
            self.let_go(lane, first, count)

    def _close_answered(self, lane: Lane, answered: list[int]) -> None:
        """Accounts of requests that got their result: they become ghosts for the moment until `let_go`."""
        slots = lane.slots
        for slot in answered:
            if not slots.claim(slot):
                raise AssertionError(f"a result for slot {slot}, which was answered before: this is a bug")
            session = self._sessions[slots.session[slot]]
            session.inflight -= 1
            session.ghosts += 1
        lane.stats.ok += len(answered)

    def _await_return(self, lane: Lane, owners: list[int], now_ns: int) -> None:
        """Sessions have got replies: who had one request, and has none now, may come back soon.

        Args:
            lane: the model.
            owners: session of each reply.
            now_ns: the time of the event.
        """
        replies = Counter(owners)
        sessions = self._sessions
        alone = [owner for owner, count in replies.items() if count == 1 and not sessions[owner].inflight]
        if alone:
            lane.returns.replied_many(np.array(alone, np.uint32), now_ns)

    def _span(self, lane: Lane, live: list[int], position: int, failures: Failures) -> int:
        """How many adjacent requests of one INFER_MANY, from `position` on, one RESULT_MANY may answer."""
        slots = lane.slots
        slot = live[position]
        session = self._sessions[slots.session[slot]]
        if not slots.flags[slot] & MANY or slots.flags[slot] & SPECIAL:
            return 1
        span = 1
        while (
            position + span < len(live)
            and live[position + span] == slot + span
            and slots.frame[slot + span] == slots.frame[slot]
            and slots.rid[slot + span] == slots.rid[slot] + span
            and slot + span not in failures
            and session.takes_result(lane, span + 1)
        ):
            span += 1
        return span

    def _answer(
        self,
        batch: Batch,
        result: StageResult,
        slot: int,
        span: int,
        parts: dict[int, list[Buffer]],
        now_ns: int,
    ) -> None:
        """Appends the reply of `span` requests that start at `slot` to the parts of their session."""
        lane = batch.lane
        slots = lane.slots
        flags = slots.flags[slot]
        many = bool(flags & MANY)
        rows = span if many else slots.rows[slot]
        meta = b""
        if flags & Flag.SAMPLED and not flags & Flag.NOREPLY:
            meta = timing_trailer(batch, result, slot, now_ns, self._clock.now_ns())
            if not self._sessions[slots.session[slot]].takes_result(lane, rows, len(meta)):
                meta = b""  # the client takes the result, but not that much more
        parts.setdefault(slots.session[slot], []).extend(
            result_parts(
                lane,
                slot,
                rows,
                rid=slots.rid[slot],
                flags=flags,
                server_ns=now_ns - slots.received_at(slot),
                queue_ns=batch.cut_ns - int(slots.readies_ns[slot : slot + rows].min()),
                meta=meta,
                many=many,
            )
        )

    def _write(self, session: Session, buffers: list[Buffer]) -> None:
        if sum(map(len, buffers)) <= JOIN_NBYTES:
            session.sink.write(b"".join(buffers))
        else:
            session.sink.write_parts(buffers)


def failed_requests(lane: Lane, ranges: Sequence[Range], result: StageResult) -> Failures:
    """The requests that the failed rows of a result belong to: one bad row fails its request."""
    rows = lane.slots.rows
    failures: Failures = {}
    for position, code, message in result.failures:
        slot = slot_at(ranges, position)
        while not rows[slot]:
            slot -= 1
        failures.setdefault(slot, (known(code), message))
    return failures


def known(code: int) -> ErrorCode:
    """The registered meaning of a code that came from a worker."""
    return code_of(code) or ErrorCode.INTERNAL


def timing_trailer(batch: Batch, result: StageResult, slot: int, finished_ns: int, sent_ns: int) -> bytes:
    """The TIMING TLV of one request: when each of its phases ended, monotonic nanoseconds."""
    slots = batch.lane.slots
    received_ns = slots.received_at(slot)
    timing = Timing(
        received_ns=received_ns,
        # Read from the clock, while what became ready in the same turn bears the time of the turn's beginning.
        parsed_ns=min(slots.parsed_ns[slot], slots.ready_ns[slot]),
        tokenized_ns=slots.tokenized_ns[slot],
        ready_ns=slots.ready_ns[slot],
        batched_ns=batch.cut_ns,
        input_copied_ns=result.input_ns,
        run_ns=result.run_ns,
        output_copied_ns=result.finished_ns,
        sent_ns=sent_ns,
        batch_id=batch.number,
        batch_rows=batch.rows,
        padding=result.padding,
        cut_reason=int(batch.reason),
        predicted_finish_ns=batch.predicted_ns,
        finished_ns=finished_ns,
    )
    return tlv(Tag.TIMING, timing.encode())
