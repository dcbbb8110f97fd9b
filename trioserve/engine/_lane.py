"""One model as the engine serves it: admission of its requests into slots, and the queue of those ready to run.

This is the hottest code of the server. A request of one row costs one call of `Lane.admit`: a credit check, the
permits, one copy of the payload into the slot of the batch being formed and four column cells.
"""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.admission import Tenants, rank_offset_ns
from trioserve.batching import LengthQueue, RowQueue, ServiceModel, policy_named
from trioserve.memory import FULL, SlotTable
from trioserve.request import NEVER_NS
from trioserve_protocol import CLASS_MASK, HEADER_NBYTES, ErrorCode, Flag, pad8

from ._arrival import joined, scratch
from ._door import Door
from ._scheduler import Scheduler
from ._stats import LaneStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trioserve.admission import Account, Gate
    from trioserve.batching import Dispatch, WaitUntil
    from trioserve.config import ModelConfig
    from trioserve.memory import Slab
    from trioserve.request import Clock
    from trioserve_protocol import Infer, InferBegin, InferMany, Signature

    from ._arrival import Arrival, Source
    from ._batch import Range
    from ._session import Session
    from ._witness import Witness

OK: Final = ErrorCode.OK
SPECIAL: Final = int(Flag.SAMPLED | Flag.NOREPLY)
"""Flags whose reply differs from the plain RESULT header."""

MANY: Final = 1 << 15
"""Mark in the slots' flags column: a request of an INFER_MANY. Bit 15 of the wire's flags is reserved and ignored."""

WIRE_FLAGS: Final = MANY - 1
GRAINS: Final = 64
MAX_GRAIN_NS: Final = 1 << 20
"""Deadlines that differ by less than such a part of the default one, or than a millisecond, are served in order of
arrival: what clients send at one time differs by what they and the network take."""

MEAN_GAIN: Final = 1 / 16
"""Weight of one sample in a running mean."""


class Lane:
    """Requests of one model between admission and completion.

    Args:
        config: the model's configuration.
        signature: what it takes and gives.
        slab: its rows; `slab.layout.slots` is a multiple of the largest batch.
        gate: its permits.
        clock: read only for requests that ask for their timing.
        tenants: accounts of all models.
    """

    unit = "row"
    """What the run time of a batch grows with."""

    is_retired = False  # whether nobody can ask for it any more: it ends with its last request
    witness: Witness | None = None
    """Told of everything that is asked; None while nobody wants to know."""

    calm_rows = NEVER_NS
    """Rows that may be under way while the rule of the admission is not asked."""
    calm_ns = 0
    """Time that a request must have for it not to be asked."""
    next_deadline_ns = NEVER_NS
    """No unanswered request has an earlier deadline; may be too early, never too late."""
    wake_ns = NEVER_NS
    """When the policy wants to be asked again."""
    announced_rows = 0
    """Rows whose body is being received or whose text is being tokenized."""

    def __init__(
        self,
        config: ModelConfig,
        signature: Signature,
        slab: Slab,
        gate: Gate,
        clock: Clock,
        tenants: Tenants | None = None,
    ) -> None:
        self.clock: Final = clock
        self.config = config
        self.signature: Final = signature
        self.slab = slab
        self.gate: Final = gate
        self.max_rows: Final = config.batching.max_rows
        self.slots: Final = SlotTable(slab.layout.slots, self.max_rows, signature.input_nbytes(1))
        self.stats: Final = LaneStats(self.max_rows)
        self.closed_code = ErrorCode.LOADING
        """Why requests are refused at present; OK while they are served."""
        self.closed_by: dict[object, int] = {}  # by stage without a worker: when it is tried again
        self.default_deadline_ns: Final = int(config.default_deadline_ms * 1e6)
        self.queue: RowQueue | LengthQueue = self._make_queue()
        self.scheduler: Final = Scheduler(
            self.queue,
            self.slots,
            policy_named(config.batching.named_policy, self.default_deadline_ns),
            ServiceModel({}),
            max_rows=self.max_rows,
            sla_ns=self.default_deadline_ns,
            random=random,
        )
        self.scheduler.announced_etas = self._announced_etas
        self.returns: Final = self.scheduler.returns
        self.door: Final = Door(self, tenants or Tenants())
        self.offsets_ns: Final = self.door.classes.offsets_ns
        self.tensors: Final = [
            (view, spec.row_nbytes) for view, spec in zip(slab.input_views, signature.inputs, strict=True)
        ]
        self.body_nbytes: Final = signature.input_nbytes(1)
        """Payload of a one-row request, padding included; meaningless for text."""
        self.plain_frame_nbytes = HEADER_NBYTES + self.body_nbytes
        """Length of the frame of a plain request; 0 if they have no one length."""
        self.under_way: dict[Source, int] = {}
        """What they come with, bodies and bursts of texts, and when that set out; oldest first."""
        self.mean_way_ns = 0.0
        """How long that takes."""
        self.arrivals: dict[int, Arrival] = {}
        """Bodies being received, by the first slot of each of their requests."""
        self.frame_serial = 0

    def _make_queue(self) -> RowQueue | LengthQueue:
        grain_ns = 1 << max(0, (self.default_deadline_ns // GRAINS).bit_length() - 1)
        return RowQueue(self.max_rows, self.slots.deadline_ns, min(grain_ns, MAX_GRAIN_NS))

    # ---------------------------------------------------------------- the scheduler

    @property
    def service(self) -> ServiceModel:
        """How long batches run."""
        return self.scheduler.service

    @service.setter
    def service(self, service: ServiceModel) -> None:
        self.scheduler.service = service
        self.scheduler.refresh()
        self.door.settle(0)

    # ---------------------------------------------------------------- admission

    def admit(self, session: Session, account: Account, request: Infer, now_ns: int) -> ErrorCode:
        """Admits one whole INFER and copies its payload.

        Args:
            session: where it came from.
            account: whom it is counted for.
            request: the event; its payload is read here and not kept.
            now_ns: when the turn began that read it.

        Returns:
            OK, or what it is refused with.
        """
        rid, _, flags, timeout_us, rows, _, payload = request
        body_nbytes = self.body_nbytes
        if rows != 1 or flags & SPECIAL:
            return self.admit_rows(session, account, request, now_ns)
        if len(payload) != body_nbytes:
            return ErrorCode.INVALID_SIZE
        if (session.inflight or session.ghosts) and (
            session.inflight + session.ghosts >= session.max_inflight
            or session.inflight_nbytes + body_nbytes > session.max_inflight_nbytes
        ):
            return ErrorCode.CREDIT_EXCEEDED
        timeout_ns, klass = timeout_us * 1000 or self.default_deadline_ns, flags & CLASS_MASK
        if not session.inflight and self.returns.active:
            self.returns.arrived(session.index, now_ns)
        code = self.closed_code
        if not code and (klass or timeout_ns < self.calm_ns or self.gate.rows.taken >= self.calm_rows):
            code = self.door.reserve(account, flags, (1, 1), timeout_ns, now_ns)[1]
        if code:
            return code
        if not self.gate.admit(1, body_nbytes):
            return ErrorCode.SHED
        slots = self.slots
        slot = slots.lease(1)
        if slot == FULL:
            raise AssertionError("there are fewer slots than permits: this is a bug")
        offset = 0
        for view, nbytes in self.tensors:
            start = slot * nbytes
            view[start : start + nbytes] = payload[offset : offset + nbytes]
            offset += nbytes + (-nbytes & 7)
        deadline_ns = now_ns + timeout_ns
        slots.rid[slot] = rid
        slots.session[slot] = session.index
        slots.deadline_ns[slot] = deadline_ns
        slots.ready_ns[slot] = now_ns
        self.next_deadline_ns = min(self.next_deadline_ns, deadline_ns)
        session.inflight += 1
        session.inflight_nbytes += body_nbytes
        self.queue.push(slot, 1, deadline_ns, self.offsets_ns[klass])
        return OK

    def admit_rows(self, session: Session, account: Account, request: Infer, now_ns: int) -> ErrorCode:
        """Admits one whole INFER of any number of rows and any flags; see `admit`."""
        rows, payload = request.rows, request.payload
        body_nbytes = self.signature.input_nbytes(rows)
        if rows > self.max_rows:
            return ErrorCode.TOO_MANY_ROWS
        if len(payload) != body_nbytes:
            return ErrorCode.INVALID_SIZE
        first, code = self.enter(session, account, request, rows, body_nbytes, now_ns)
        if code:
            return code
        offset = 0
        for view, nbytes in self.tensors:
            part = nbytes * rows
            start = first * nbytes
            view[start : start + part] = payload[offset : offset + part]
            offset += pad8(part)
        self.slots.readies_ns[first : first + rows] = now_ns
        self.queue.push(first, rows, self.slots.deadline_ns[first], self.offset_of(first))
        return OK

    def refusal(self, session: Session, requests: int, body_nbytes: int, reply_rows: int) -> ErrorCode:
        """Why a frame is refused before any permit is asked for; OK if it is not.

        Args:
            session: where it came from.
            requests: how many requests are in it.
            body_nbytes: what each of them counts for in credit.
            reply_rows: rows in the reply to each.
        """
        if not session.takes_result(self, reply_rows):
            return ErrorCode.OUT_OF_RANGE
        if not session.may_send(requests, body_nbytes):
            return ErrorCode.CREDIT_EXCEEDED
        return self.closed_code

    def enter(
        self,
        session: Session,
        account: Account,
        request: Infer | InferBegin,
        rows: int,
        body_nbytes: int,
        now_ns: int,
    ) -> tuple[int, ErrorCode]:
        """Admits one request of any number of rows and any flags, all or nothing, and writes its columns.

        Args:
            session: where it came from.
            account: whom it is counted for.
            request: the event it came in, or that began it.
            rows: contiguous slots it needs.
            body_nbytes: what it counts for in credit and permits.
            now_ns: when it was received.

        Returns:
            Its first slot and OK, or `FULL` and what it is refused with; then nothing is taken.
        """
        timeout_ns = request.timeout_us * 1000 or self.default_deadline_ns
        code = self.refusal(session, 1, body_nbytes, rows)
        if not session.inflight and self.returns.active:
            self.returns.arrived(session.index, now_ns)
        eta_ns = self.eta_ns(request)
        if not code and not self.door.is_calm(rows, timeout_ns, request.flags, eta_ns):
            code = self.door.reserve(account, request.flags, (1, rows), timeout_ns, now_ns, eta_ns)[1]
        if code:
            return FULL, code
        if not self.gate.admit(rows, body_nbytes):
            return FULL, ErrorCode.SHED
        slots = self.slots
        first = slots.lease(rows)
        if first == FULL:
            self.gate.release(rows, body_nbytes)
            return FULL, ErrorCode.SHED
        slots.rid[first] = request.rid
        slots.session[first] = session.index
        deadline_ns = now_ns + timeout_ns
        slots.deadlines_ns[first : first + rows] = deadline_ns
        slots.receiveds_ns[first : first + rows] = now_ns
        slots.parsed_ns[first] = self.clock.now_ns() if request.flags & Flag.SAMPLED else now_ns
        slots.tokenized_ns[first] = 0
        slots.flags[first] = self.marks_of(request.flags)
        slots.rows[first] = rows
        if rows > 1:
            slots.row_counts[first + 1 : first + rows] = 0
        slots.body_nbytes[first] = body_nbytes
        slots.mark_special(first)
        self.next_deadline_ns = min(self.next_deadline_ns, deadline_ns)
        session.inflight += 1
        session.inflight_nbytes += body_nbytes
        return first, OK

    # ---------------------------------------------------------------- large bodies

    def destinations(self, request: InferBegin, ranges: Sequence[Range]) -> list[memoryview]:
        """Where the payload of a large frame goes: per tensor the slab memory of its rows in order.

        The rows of an INFER_MANY that were not admitted, and the padding, go to a scratch.
        """
        admitted = sum(count for _, count in ranges)
        parts: list[memoryview] = []
        for view, nbytes in self.tensors:
            parts += [view[first * nbytes : (first + count) * nbytes] for first, count in joined(ranges)]
            parts += scratch(pad8(request.rows * nbytes) - admitted * nbytes)
        return parts

    def complete(self, arrival: Arrival, now_ns: int) -> dict[int, tuple[ErrorCode, str]]:
        """The body is where `destinations` said: its requests are ready.

        Returns:
            Which of them cannot be used, by first slot, and why.
        """
        for first, count in arrival.ranges:
            self.slots.readies_ns[first : first + count] = now_ns
        return {}

    def enqueue(self, first: int, count: int) -> None:
        """Enters the unanswered requests of a range, all of one block and one frame, which have become ready."""
        slots = self.slots
        if slots.all_live(first, count):
            self.queue.push(first, count, slots.deadline_ns[first], self.offset_of(first))
            return
        for slot in slots.live_in(first, count).tolist():
            self.queue.push(slot, slots.rows[slot], slots.deadline_ns[slot], self.offset_of(slot))

    # ---------------------------------------------------------------- the queue

    def marks_of(self, flags: int) -> int:
        """What the slots keep of a request's flags: in the place of the class, its rank at this moment."""
        return flags & WIRE_FLAGS & ~CLASS_MASK | self.door.classes.ranks[flags & CLASS_MASK]

    def offset_of(self, first: int) -> int:
        """How far the key of an admitted request, whose flags are in its slot, is behind its deadline."""
        return rank_offset_ns(self.slots.flags[first] & CLASS_MASK, self.default_deadline_ns)

    def decide(self, now_ns: int) -> Dispatch | WaitUntil:
        """What the executor, which can take a batch, should do about this model; its queue must not be empty."""
        self.door.tell(now_ns)
        return self.scheduler.decide(0, now_ns)

    def _announced_etas(self) -> list[int]:
        """When the announced rows are expected."""
        mean_ns = int(self.mean_way_ns)
        etas: list[int] = []
        for source, begun_ns in self.under_way.items():
            etas += [begun_ns + mean_ns] * min(source.rows, self.max_rows)
        return etas

    def eta_ns(self, request: Infer | InferMany | InferBegin) -> float:
        """How long after its header a request is usually ready to run; 0 for one that is complete."""
        return 0.0 if hasattr(request, "payload") else self.mean_way_ns

    def came_in(self, source: Source, now_ns: int) -> None:
        """What was under way is here: learns how long that took."""
        took_ns = now_ns - self.under_way.pop(source)
        self.mean_way_ns += MEAN_GAIN * (took_ns - self.mean_way_ns) if self.mean_way_ns else took_ns

    def is_running(self, first: int) -> bool:
        """Whether a request is with the worker that executes it."""
        return self.slots.is_held_by_batch(first) and first not in self.arrivals

    def waits_to_run(self, first: int) -> bool:
        """Whether a live request is in the queue, and lacks nothing but an executor."""
        return not self.slots.is_held_by_batch(first)

    def was_promised(self, first: int) -> bool:
        """Whether there has been a worker all the time that a request has been ready to run."""
        return self.slots.ready_ns[first] >= self.scheduler.occupancy.since_ns

    def after_cut(self, ranges: list[tuple[int, int]]) -> None:
        """Lets the rows that arrive from now on lie in one place, so that they can be a batch without gathering.

        A block that still fills up behind the ones that were cut stays open.
        """
        for first, _ in ranges:
            self.slots.seal(first)

    def measure(self, ranges: list[Range], rows: int) -> tuple[NDArray[np.uint32] | None, int]:
        """What a batch of some ranges with so many rows in all takes.

        Returns:
            Valid length of each row, None for rows of one size; and the batch's units of service time.
        """
        del ranges
        return None, rows

    def withdraw(self, first: int, rows: int) -> None:
        """Takes a request that is being answered out of where it waits; its slots may be leased again at once."""
        if not self.queue.remove(first, rows):
            raise AssertionError("a live request that no batch holds waits nowhere: this is a bug")
