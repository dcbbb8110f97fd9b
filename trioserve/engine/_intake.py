"""The front door: what a transport calls with the requests it has read.

A request that cannot be admitted is answered here, from its header where possible: the payload of a refused
request is never copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.admission import SEEN_NS
from trioserve.errors import TrioserveError
from trioserve_protocol import (
    ErrorCode,
    FrameType,
    Infer,
    RemoteProtocolError,
    check_request,
    parse_request_meta,
)

from ._bulk import admit_many, begin
from ._columns import admit_columns, admit_run, terms_of
from ._lane import SPECIAL
from ._refusals import Refusals
from ._text import TextLane

if TYPE_CHECKING:
    from trioserve.admission import Account
    from trioserve_protocol import InferBegin, InferMany, InferRun

    from ._arrival import Arrival
    from ._engine import Engine
    from ._lane import Lane
    from ._session import Session

MAX_NAMED: Final = 64
"""Most meta blocks of by-name requests that one connection's cache keeps."""

MAX_NAMED_NBYTES: Final = 512
"""Largest of them: a name, a version and the tensors of a usual model. At 64 KiB each, what a client may send, 10,000
connections could make the server keep 40 GB."""


class Intake:
    """Takes requests off connections.

    Args:
        engine: finds models and answers what is refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._refusals: Final = Refusals(engine)
        self.refuse_frame: Final = self._refusals.frame

    def admit(self, session: Session, request: Infer, now_ns: int) -> None:
        """Takes one INFER off a connection: it is admitted or refused, and either way answered once.

        Args:
            session: where it came from.
            request: the event; its payload is copied or dropped here.
            now_ns: when the turn began that read it.
        """
        rid, account = request.rid, session.accounts.get(request.handle, session.account)
        lane = session.lanes.get(request.handle)
        if lane is None or request.meta:
            found = self._find(session, request, len(request.payload), 1, many=False)
            if found is None:
                return
            lane, account = found
        session.taken += 1
        lane.stats.received += 1
        if lane.witness is not None:
            lane.witness.saw(session.index, 1, request.timeout_us, request.flags, now_ns, rows=request.rows)
        if rid > session.last_rid:
            session.last_rid = rid
        elif self._refusals.is_in_flight(session, lane, rid, 1):
            return
        if (account.bucket is not None or lane.door.quarantine.is_refusing) and (
            code := _barred(lane, account, request, now_ns)
        ):
            self._refusals.refuse(session, lane, account, (rid, 1), code)
            return
        try:
            code = lane.admit(session, account, request, now_ns)
        except RemoteProtocolError as error:
            account.give_back(1)
            self._refusals.refuse(session, lane, account, (rid, 1), error.code, error.message)
            return
        if code:
            account.give_back(1)
            if code is ErrorCode.SHED:
                self._refusals.shed(session, lane, rid, now_ns)
            else:
                message = self._refusals.explain(session, lane, code, request, len(request.payload))
                self._refusals.refuse(session, lane, account, (rid, 1), code, message)

    def admit_run(self, session: Session, run: InferRun, now_ns: int) -> None:
        """Takes a run of INFERs off a connection: as many as there is room for are admitted, the others refused."""
        lane = session.lanes.get(run.handle)
        flags = _flags_of(run, session.last_rid)
        account, terms = session.accounts.get(run.handle, session.account), None
        if lane is not None and flags >= 0 and _takes_columns(lane, run):
            terms = terms_of(lane, account, run, flags, now_ns)
        if lane is None or terms is None:
            for row in range(run.count):
                self.admit(session, _request_of(run, row), now_ns)
            return
        session.taken += run.count
        session.last_rid = int(run.rids[-1])
        lane.stats.received += run.count
        if lane.witness is not None:
            lane.witness.saw(session.index, run.count, run.timeouts_us, run.flags, now_ns)
        done, code = admit_run(lane, session, run, terms, now_ns)
        if done < run.count:
            self._refusals.refuse_rest(session, lane, account, run, done, code)

    def admit_across(self, lane: Lane, sessions: list[Session], run: InferRun, now_ns: int) -> None:
        """Takes one plain request off each of several connections that have nothing in flight.

        Args:
            lane: the model of all of them.
            sessions: the connections, in the order of the run; their credit is at least one request, and each id is
                higher than any its connection has used.
            run: the requests; its payload is read here and not kept.
            now_ns: when the turn began that read it.
        """
        tenants = self._engine.tenants
        flags = int(np.bitwise_or.reduce(run.flags))
        columns = not tenants.has_quotas and _takes_columns(lane, run)
        terms = terms_of(lane, None, run, flags, now_ns) if columns else None
        if terms is None or not (terms.is_calm or not any(session.account.leaves for session in sessions)):
            for row, session in enumerate(sessions):
                self.admit(session, _request_of(run, row), now_ns)
            return
        lane.stats.received += run.count
        indices = np.array([session.index for session in sessions], np.uint32)
        if lane.witness is not None:
            lane.witness.saw(indices, run.count, run.timeouts_us, run.flags, now_ns)
        lane.returns.arrived_many(indices, now_ns)
        done, code = admit_columns(lane, indices, run, terms, run.count, now_ns)
        if not (terms.is_calm or lane.closed_code):
            for row, session in enumerate(sessions):
                tenants.count(session.account, (lane.scheduler.row_ns if row < done else 0.0) + SEEN_NS)
        body_nbytes, rids = lane.body_nbytes, run.rids.tolist()
        for session, rid in zip(sessions, rids, strict=True):
            session.taken += 1
            session.last_rid = rid
            session.inflight += 1
            session.inflight_nbytes += body_nbytes
        for session, rid in zip(sessions[done:], rids[done:], strict=True):
            session.inflight -= 1
            session.inflight_nbytes -= body_nbytes
            self._refusals.refuse(session, lane, session.account, (rid, 1), code)

    def admit_many(self, session: Session, request: InferMany, now_ns: int) -> None:
        """Takes one INFER_MANY off a connection: its requests are admitted as far as there is room."""
        rid, total = request.rid, request.rows
        found = self._find(session, request, len(request.payload), total, many=True)
        if found is None or not self._take_ids(session, found[0], request, total, now_ns):
            return
        lane, account = found
        granted = account.grant(total, now_ns)
        done = 0
        try:
            if isinstance(lane, TextLane):
                done, code = lane.admit_texts(session, account, request, now_ns, most=granted)
            else:
                done, code = admit_many(lane, session, account, request, now_ns, most=granted)
            message = self._refusals.explain(session, lane, code, request, len(request.payload))
        except RemoteProtocolError as error:
            code, message = error.code, error.message
        if done < total:
            code = _or_quota(account, granted, done, total, code)
            self._refusals.refuse(session, lane, account, (rid + done, total - done), code, message)

    def begin(self, session: Session, request: InferBegin, now_ns: int) -> Arrival | None:
        """Takes the header of a large INFER or INFER_MANY off a connection.

        Returns:
            Where its body is to be received; None if it was refused and the body is to be discarded.
        """
        many = request.frame_type == FrameType.INFER_MANY
        count = request.rows if many else 1
        found = self._find(session, request, request.payload_nbytes, count, many=many)
        if found is None or not self._take_ids(session, found[0], request, count, now_ns):
            return None
        lane, account = found
        refuse = self._refusals.refuse
        if isinstance(lane, TextLane) and request.payload_nbytes > lane.max_payload_nbytes(request.rows):
            most = lane.max_payload_nbytes(request.rows)
            message = f"payload: expected at most {most} bytes of texts, got {request.payload_nbytes}"
            refuse(session, lane, account, (request.rid, count), ErrorCode.INVALID_BYTES, message)
            return None
        granted = account.grant(count, now_ns)
        arrival, done, code = begin(lane, session, account, request, now_ns, most=granted)
        if done < count:
            code = _or_quota(account, granted, done, count, code)
            message = self._refusals.explain(session, lane, code, request, request.payload_nbytes)
            refuse(session, lane, account, (request.rid + done, count - done), code, message)
        return arrival

    def arrived(self, arrival: Arrival, now_ns: int) -> None:
        """The body is complete: its requests are ready to run, or refused if it is not what was promised."""
        lane, terminal = arrival.lane, self._engine.terminal
        if not arrival.is_intact:
            self.break_off(arrival, ErrorCode.CRC_MISMATCH, "CRC-32 of the body does not match")
            return
        for first, rows in arrival.requests:
            del lane.arrivals[first]
            if lane.slots.is_live(first):
                lane.announced_rows -= rows
        lane.came_in(arrival, now_ns)
        for first, (code, message) in lane.complete(arrival, now_ns).items():
            terminal.fail(lane, first, code, message)
        for first, count in arrival.ranges:
            terminal.let_go(lane, first, count)
            lane.enqueue(first, count)

    def break_off(self, arrival: Arrival, code: ErrorCode, message: str) -> None:
        """The body cannot be used: its requests are answered with an error, and the arrival is abandoned."""
        for first, _ in arrival.requests:
            self._engine.terminal.fail(arrival.lane, first, code, message)

    # ---------------------------------------------------------------- which model

    def _find(
        self,
        session: Session,
        request: Infer | InferMany | InferBegin,
        payload_nbytes: int,
        count: int,
        *,
        many: bool,
    ) -> tuple[Lane, Account] | None:
        """Model and tenant of a request that names its model or has a meta block; without one it is answered here."""
        key = (many, request.handle, request.rows, payload_nbytes, request.meta)
        found = session.named.get(key)
        if found is not None:
            return found
        try:
            found = self._resolve(session, request, payload_nbytes, many=many)
        except (TrioserveError, RemoteProtocolError) as error:
            self.refuse_frame(session, request.rid, count, error.code, error.message, count)
            return None
        if 0 < len(request.meta) <= MAX_NAMED_NBYTES:
            if len(session.named) >= MAX_NAMED:
                session.named.clear()
            session.named[key] = found
        return found

    def _resolve(
        self,
        session: Session,
        request: Infer | InferMany | InferBegin,
        payload_nbytes: int,
        *,
        many: bool,
    ) -> tuple[Lane, Account]:
        session.check_may_infer()
        bound = bool(request.handle)
        meta = parse_request_meta(request.meta, bound=bound, limits=self._engine.wire_limits)
        if not bound:
            lane = self._engine.find(meta.model or "", meta.version)
        elif (known := session.lanes.get(request.handle)) is not None:
            lane = known
        elif request.handle in session.changed:
            raise RemoteProtocolError(ErrorCode.SIGNATURE_CHANGED, f"handle {request.handle}: bind it again")
        else:
            raise RemoteProtocolError(ErrorCode.HANDLE_NOT_BOUND, f"handle {request.handle} is not bound")
        fault = check_request(
            lane.signature,
            request.rows,
            payload_nbytes,
            meta if request.meta else b"",
            bound=bound,
            many=many,
            limits=self._engine.wire_limits,
        )
        if fault is not None:
            raise fault
        self.check_takes_result(session, lane)
        account = self._engine.account(
            meta.tenant
        )  # only of a request without a handle: else the check refuses it
        return lane, account or session.accounts.get(request.handle, session.account)

    def check_takes_result(self, session: Session, lane: Lane) -> None:
        """Makes sure that the client takes at least a result of one row, before any request relies on it.

        Raises:
            RemoteProtocolError: it said in HELLO that it takes less.
        """
        if not session.takes_result(lane, 1):
            most, needed = session.max_body_nbytes, lane.signature.output_nbytes(1)
            message = f"max_frame: expected at least the {needed} bytes of a result, the client takes {most}"
            raise RemoteProtocolError(ErrorCode.OUT_OF_RANGE, message)

    def _take_ids(
        self, session: Session, lane: Lane, request: InferMany | InferBegin, count: int, now_ns: int
    ) -> bool:
        """Counts requests as taken; False if an id is in flight, which refuses the whole frame."""
        rid = request.rid
        session.taken += count
        lane.stats.received += count
        if lane.witness is not None:
            rows = request.rows // count
            lane.witness.saw(session.index, count, request.timeout_us, request.flags, now_ns, rows=rows)
        if rid > session.last_rid:
            session.last_rid = rid + count - 1
            return True
        if self._refusals.is_in_flight(session, lane, rid, count):
            return False
        session.last_rid = max(session.last_rid, rid + count - 1)
        return True


def _or_quota(account: Account, granted: int, done: int, count: int, code: ErrorCode) -> ErrorCode:
    """Why not all of `count` requests were admitted, and what was granted and not used goes back to the quota."""
    account.give_back(granted - done)
    return ErrorCode.QUOTA_EXCEEDED if done == granted < count and code is ErrorCode.SHED else code


def _barred(lane: Lane, account: Account, request: Infer, now_ns: int) -> ErrorCode:
    """Why a request is refused whatever the load is; if it is not, it counts against the quota."""
    quarantine = lane.door.quarantine
    if quarantine.is_refusing and quarantine.refuses(lane, request.payload, request.rows, now_ns):
        return ErrorCode.POISON_INPUT
    return ErrorCode.OK if account.grant(1, now_ns) else ErrorCode.QUOTA_EXCEEDED


def _takes_columns(lane: Lane, run: InferRun) -> bool:
    """Whether nobody has to look at each request of a run: at a text, or for an input that kills workers."""
    if isinstance(lane, TextLane):
        return False
    return not (lane.door.quarantine.is_refusing and lane.door.quarantine.may_refuse(lane, run.payload))


def _flags_of(run: InferRun, last_rid: int) -> int:
    """The flags, joined by or, of a run that can be admitted as columns; -1 for another one.

    It can if its requests are plain, with ascending ids that were not used before.
    """
    flags = int(np.bitwise_or.reduce(run.flags))
    rids = run.rids
    first = int(rids[0])
    if run.rows != 1 or run.meta or flags & SPECIAL or first <= last_rid:
        return -1
    # Clients that count are the rule, and comparing lists is three times as fast as a vector comparison of 16.
    ascend = rids.tolist() == list(range(first, first + run.count)) or bool((rids[1:] > rids[:-1]).all())
    return flags if ascend else -1


def _request_of(run: InferRun, row: int) -> Infer:
    """One request of a run as an event of its own."""
    payload = memoryview(run.payload[row])
    return Infer(
        int(run.rids[row]),
        run.handle,
        int(run.flags[row]),
        int(run.timeouts_us[row]),
        run.rows,
        run.meta,
        payload,
    )
