"""The front door: what a transport calls with the requests it has read.

A request that cannot be admitted is answered here, from its header where possible: the payload of a refused
request is never copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.errors import TrioserveError
from trioserve_protocol import (
    ErrorCode,
    FrameType,
    Infer,
    RemoteProtocolError,
    check_request,
    error_columns,
    error_frame,
    parse_request_meta,
)

from ._bulk import admit_many, begin
from ._columns import admit_columns, admit_run
from ._lane import SPECIAL
from ._text import TextLane

if TYPE_CHECKING:
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

    def admit(self, session: Session, request: Infer, now_ns: int) -> None:
        """Takes one INFER off a connection: it is admitted or refused, and either way answered once.

        Args:
            session: where it came from.
            request: the event; its payload is copied or dropped here.
            now_ns: when the turn began that read it.
        """
        rid = request.rid
        lane = session.lanes.get(request.handle)
        if lane is None or request.meta:
            lane = self._lane_of(session, request, len(request.payload), 1, many=False)
            if lane is None:
                return
        session.taken += 1
        lane.stats.received += 1
        if rid > session.last_rid:
            session.last_rid = rid
        elif self._is_in_flight(session, lane, rid, 1):
            return
        if lane.quarantine.is_refusing and lane.quarantine.refuses(
            lane, request.payload, request.rows, now_ns
        ):
            self._refuse(session, lane, rid, 1, ErrorCode.POISON_INPUT)
            return
        try:
            code = lane.admit(session, request, now_ns)
        except RemoteProtocolError as error:
            self._refuse(session, lane, rid, 1, error.code, error.message)
            return
        if code:
            self._refuse(
                session, lane, rid, 1, code, self._explain(session, lane, code, request, len(request.payload))
            )

    def admit_run(self, session: Session, run: InferRun, now_ns: int) -> None:
        """Takes a run of INFERs off a connection: as many as there is room for are admitted, the others refused."""
        rids = run.rids
        lane = session.lanes.get(run.handle)
        if (
            lane is None
            or not _is_plain(run, session.last_rid)
            or isinstance(lane, TextLane)
            or _may_be_refused(lane, run)
        ):
            for row in range(run.count):
                self.admit(session, _request_of(run, row), now_ns)
            return
        session.taken += run.count
        session.last_rid = int(rids[-1])
        lane.stats.received += run.count
        done, code = admit_run(lane, session, run, now_ns)
        if done < run.count:
            self._refuse_rest(session, lane, run, done, code)

    def admit_across(self, lane: Lane, sessions: list[Session], run: InferRun, now_ns: int) -> None:
        """Takes one plain request off each of several connections that have nothing in flight.

        Args:
            lane: the model of all of them.
            sessions: the connections, in the order of the run; their credit is at least one request, and each id is
                higher than any its connection has used.
            run: the requests; its payload is read here and not kept.
            now_ns: when the turn began that read it.
        """
        if _may_be_refused(lane, run):
            for row, session in enumerate(sessions):
                self.admit(session, _request_of(run, row), now_ns)
            return
        lane.stats.received += run.count
        indices = np.array([session.index for session in sessions], np.uint32)
        done, code = admit_columns(lane, indices, run, run.count, now_ns)
        body_nbytes, rids = lane.body_nbytes, run.rids.tolist()
        for session, rid in zip(sessions, rids, strict=True):
            session.taken += 1
            session.last_rid = rid
            session.inflight += 1
            session.inflight_nbytes += body_nbytes
        for session, rid in zip(sessions[done:], rids[done:], strict=True):
            session.inflight -= 1
            session.inflight_nbytes -= body_nbytes
            self._refuse(session, lane, rid, 1, code)

    def admit_many(self, session: Session, request: InferMany, now_ns: int) -> None:
        """Takes one INFER_MANY off a connection: its requests are admitted as far as there is room."""
        rid, total = request.rid, request.rows
        lane = self._lane_of(session, request, len(request.payload), total, many=True)
        if lane is None or not self._take_ids(session, lane, rid, total):
            return
        try:
            if isinstance(lane, TextLane):
                done, code = lane.admit_texts(session, request, now_ns)
            else:
                done, code = admit_many(lane, session, request, now_ns)
        except RemoteProtocolError as error:
            self._refuse(session, lane, rid, total, error.code, error.message)
            return
        if done < total:
            message = self._explain(session, lane, code, request, len(request.payload))
            self._refuse(session, lane, rid + done, total - done, code, message)

    def begin(self, session: Session, request: InferBegin, now_ns: int) -> Arrival | None:
        """Takes the header of a large INFER or INFER_MANY off a connection.

        Returns:
            Where its body is to be received; None if it was refused and the body is to be discarded.
        """
        many = request.frame_type == FrameType.INFER_MANY
        count = request.rows if many else 1
        lane = self._lane_of(session, request, request.payload_nbytes, count, many=many)
        if lane is None or not self._take_ids(session, lane, request.rid, count):
            return None
        if isinstance(lane, TextLane) and request.payload_nbytes > lane.max_payload_nbytes(request.rows):
            most = lane.max_payload_nbytes(request.rows)
            message = f"payload: expected at most {most} bytes of texts, got {request.payload_nbytes}"
            self._refuse(session, lane, request.rid, count, ErrorCode.INVALID_BYTES, message)
            return None
        arrival, done, code = begin(lane, session, request, now_ns)
        if done < count:
            message = self._explain(session, lane, code, request, request.payload_nbytes)
            self._refuse(session, lane, request.rid + done, count - done, code, message)
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

    def _lane_of(
        self,
        session: Session,
        request: Infer | InferMany | InferBegin,
        payload_nbytes: int,
        count: int,
        *,
        many: bool,
    ) -> Lane | None:
        """The model of a request that names it or has a meta block; a request without one is answered here."""
        key = (many, request.handle, request.rows, payload_nbytes, request.meta)
        lane = session.named.get(key)
        if lane is not None:
            return lane
        try:
            lane = self._resolve(session, request, payload_nbytes, many=many)
        except (TrioserveError, RemoteProtocolError) as error:
            self.refuse_frame(session, request.rid, count, error.code, error.message, count)
            return None
        if 0 < len(request.meta) <= MAX_NAMED_NBYTES:
            if len(session.named) >= MAX_NAMED:
                session.named.clear()
            session.named[key] = lane
        return lane

    def _resolve(
        self,
        session: Session,
        request: Infer | InferMany | InferBegin,
        payload_nbytes: int,
        *,
        many: bool,
    ) -> Lane:
        bound = bool(request.handle)
        meta = parse_request_meta(request.meta, bound=bound, limits=self._engine.wire_limits)
        if not bound:
            lane = self._engine.find(meta.model or "", meta.version)
        elif (known := session.lanes.get(request.handle)) is not None:
            lane = known
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
        return lane

    def check_takes_result(self, session: Session, lane: Lane) -> None:
        """Makes sure that the client takes at least a result of one row, before any request relies on it.

        Raises:
            RemoteProtocolError: it said in HELLO that it takes less.
        """
        if not session.takes_result(lane, 1):
            most, needed = session.max_body_nbytes, lane.signature.output_nbytes(1)
            message = f"max_frame: expected at least the {needed} bytes of a result, the client takes {most}"
            raise RemoteProtocolError(ErrorCode.OUT_OF_RANGE, message)

    # ---------------------------------------------------------------- ids and refusals

    def refuse_frame(
        self, session: Session, rid: int, count: int, code: ErrorCode, message: str, requests: int
    ) -> None:
        """Answers a frame that never got as far as a model.

        Args:
            session: where it came from.
            rid: its id, the first of an INFER_MANY.
            count: ids that the refusal ends.
            code: why.
            message: what was expected and what was given.
            requests: what it counts for in GOAWAY; 0 for a control frame.
        """
        session.taken += requests
        if self._live_id(session, rid, count) is not None:
            rid, count = 0, 1  # the id belongs to a live request, which this must not end
        session.sink.write_soon(error_frame(rid, code, message, count=count))

    def _live_id(self, session: Session, rid: int, count: int) -> int | None:
        """The first of some ids that is in flight."""
        if not session.inflight:
            return None
        for lane in self._engine.lanes:
            found = lane.slots.find(session.index, rid, count)
            if len(found):
                return lane.slots.rid[int(found[0])]
        return None

    def _take_ids(self, session: Session, lane: Lane, rid: int, count: int) -> bool:
        """Counts requests as taken; False if an id is in flight, which refuses the whole frame."""
        session.taken += count
        lane.stats.received += count
        if rid > session.last_rid:
            session.last_rid = rid + count - 1
            return True
        if self._is_in_flight(session, lane, rid, count):
            return False
        session.last_rid = max(session.last_rid, rid + count - 1)
        return True

    def _is_in_flight(self, session: Session, lane: Lane, rid: int, count: int) -> bool:
        """Whether one of the ids is in flight.

        The refusal names it in the text and has id 0, so that it does not end the live request.
        """
        live = self._live_id(session, rid, count)
        if live is None:
            return False
        lane.stats.count_refusal(ErrorCode.RID_IN_FLIGHT, count)
        session.sink.write_soon(error_frame(0, ErrorCode.RID_IN_FLIGHT, f"id {live} is in flight"))
        return True

    def _refuse(
        self, session: Session, lane: Lane, rid: int, count: int, code: ErrorCode, message: str = ""
    ) -> None:
        lane.stats.count_refusal(code, count)
        retry_us = self._engine.retry_after_us(lane) if code.retryable else None
        session.sink.write_soon(error_frame(rid, code, message, count=count, retry_after_us=retry_us))

    def _refuse_rest(self, session: Session, lane: Lane, run: InferRun, done: int, code: ErrorCode) -> None:
        """Refuses what was not admitted of a run; where there is nothing to explain, as columns."""
        message = self._explain(session, lane, code, run, run.payload.shape[1])
        if message:
            for rid in run.rids[done:].tolist():
                self._refuse(session, lane, rid, 1, code, message)
            return
        lane.stats.count_refusal(code, run.count - done)
        retry_us = self._engine.retry_after_us(lane) if code.retryable else None
        session.sink.write_soon(error_columns(run.rids[done:], code, retry_us).tobytes())

    def _explain(
        self,
        session: Session,
        lane: Lane,
        code: ErrorCode,
        request: Infer | InferRun | InferMany | InferBegin,
        payload_nbytes: int,
    ) -> str:
        """What was expected and what was given; empty where the code says it all (a shed reply is 32 bytes)."""
        if code == ErrorCode.INVALID_SIZE:
            expected = lane.signature.input_nbytes(request.rows)
            return f"payload: expected {expected} bytes for {request.rows} rows, got {payload_nbytes}"
        if code == ErrorCode.TOO_MANY_ROWS:
            return f"rows: expected at most {lane.max_rows}, got {request.rows}"
        if code == ErrorCode.CREDIT_EXCEEDED:
            return f"credit: at most {session.max_inflight} requests and {session.max_inflight_nbytes} bytes in flight"
        return ""


def _may_be_refused(lane: Lane, run: InferRun) -> bool:
    """Whether one of a run may be an input that kills workers, so that each has to be looked at."""
    return lane.quarantine.is_refusing and lane.quarantine.may_refuse(lane, run.payload)


def _is_plain(run: InferRun, last_rid: int) -> bool:
    """Whether a run can be admitted as columns: plain requests with ascending ids that were not used before."""
    if run.rows != 1 or run.meta or int(np.bitwise_or.reduce(run.flags)) & SPECIAL:
        return False
    rids = run.rids
    first = int(rids[0])
    if first <= last_rid:
        return False
    # Clients that count are the rule, and comparing lists is three times as fast as a vector comparison of 16.
    return rids.tolist() == list(range(first, first + run.count)) or bool((rids[1:] > rids[:-1]).all())


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
