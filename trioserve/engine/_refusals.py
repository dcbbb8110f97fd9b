"""Answers to what is not admitted: from the header alone, at once, and N of them as one array and one send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trioserve_protocol import HEADER, W0_ERROR, ErrorCode, Flag, error_columns, error_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trioserve.admission import Account
    from trioserve_protocol import Infer, InferBegin, InferMany, InferRun

    from ._engine import Engine
    from ._lane import Lane
    from ._session import Session

_SHED: Final = int(ErrorCode.SHED)
_SHED_FLAGS: Final = int(Flag.END | Flag.RETRYABLE)


class Refusals:
    """Answers what an intake refuses.

    Args:
        engine: says when to come again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    def frame(
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

    def is_in_flight(self, session: Session, lane: Lane, rid: int, count: int) -> bool:
        """Whether one of the ids is in flight; then they are refused here.

        The refusal names it in the text and has id 0, so that it does not end the live request.
        """
        live = self._live_id(session, rid, count)
        if live is None:
            return False
        lane.stats.count_refusal(ErrorCode.RID_IN_FLIGHT, count)
        session.sink.write_soon(error_frame(0, ErrorCode.RID_IN_FLIGHT, f"id {live} is in flight"))
        return True

    def refuse(
        self,
        session: Session,
        lane: Lane,
        account: Account,
        rids: tuple[int, int],
        code: ErrorCode,
        message: str = "",
    ) -> None:
        """Answers requests with adjacent ids.

        Args:
            session: where they came from.
            lane: their model.
            account: whom they would have been counted for.
            rids: the first id, and how many there are.
            code: why.
            message: what was expected and what was given, if the code does not say it all.
        """
        rid, count = rids
        lane.stats.count_refusal(code, count)
        retry_us = self._retry_us(lane, account, code, count)
        session.sink.write_soon(error_frame(rid, code, message, count=count, retry_after_us=retry_us))

    def shed(self, session: Session, lane: Lane, rid: int, now_ns: int) -> None:
        """Answers one request that there is no room for; under overload nearly all are.

        Args:
            session: where it came from.
            lane: its model.
            rid: its id.
            now_ns: when the turn began that read it.
        """
        lane.stats.count_refusal(ErrorCode.SHED, 1)
        retry_us = self._engine.retry_after_us(lane, ErrorCode.SHED, now_ns)
        # The frame that `error_frame` makes, without what it asks about.
        session.sink.write_soon(HEADER.pack(W0_ERROR, 0, rid, _SHED, _SHED_FLAGS, retry_us, 0, 1, 0))

    def refuse_rest(
        self, session: Session, lane: Lane, account: Account, run: InferRun, done: int, code: ErrorCode
    ) -> None:
        """Refuses what was not admitted of a run; where there is nothing to explain, as columns."""
        message = self.explain(session, lane, code, run, run.payload.shape[1])
        if message:
            for rid in run.rids[done:].tolist():
                self.refuse(session, lane, account, (rid, 1), code, message)
            return
        lane.stats.count_refusal(code, run.count - done)
        rids = run.rids[done:]
        retries_us: NDArray[np.uint32] | int | None
        if code is ErrorCode.SHED:
            retries_us = self._engine.retries_after_us(lane, len(rids))
        else:
            retries_us = self._retry_us(lane, account, code)
        session.sink.write_soon(error_columns(rids, code, retries_us).tobytes())

    def _retry_us(self, lane: Lane, account: Account, code: ErrorCode, count: int = 1) -> int | None:
        if code is ErrorCode.QUOTA_EXCEEDED:
            return self._engine.clamped_us(account.wait_us)
        return self._engine.retry_after_us(lane, code, requests=count) if code.retryable else None

    def explain(
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
