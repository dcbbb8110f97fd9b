"""Many requests of one row each, as columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trioserve.errors import FrameTooLarge, TrioserveError
from trioserve_protocol import (
    W0_INFER,
    W0_INFER_MANY,
    Buffer,
    DType,
    ErrorCode,
    RequestClass,
    ResultBegin,
    Signature,
    infer_flags,
)

from ._calls import DataCall, Flight, ModelKey, Piece, Reply, misfit, padded
from ._credit import CreditWindow
from ._failures import NotSent
from ._inputs import Array, array_bytes, bytes_tensor, prepare_columns
from ._outputs import Body, decode, parse_reply_meta, zeros
from ._results import Failure, ManyResult

_MAX_COUNT = 0xFFFF
_PENDING = int(ErrorCode.NOT_EXECUTED)


class ManyCall(DataCall):
    """`n` requests, one a row.

    Models with fixed shapes get INFER_MANY frames, each of at most half the window, so that the server has the next
    one while it answers the last. Rows of BYTES differ in length: they go as INFERs, as many in one write as the
    window admits.
    """

    __slots__ = (
        "_codes",
        "_columns",
        "_failures",
        "_inputs",
        "_left",
        "_next",
        "_open",
        "_outputs",
        "_rows",
        "_signature",
    )

    def __init__(
        self,
        key: ModelKey,
        inputs: object,
        *,
        deadline_s: float,
        on_done: Callable[[], object],
        priority: RequestClass = RequestClass.CRITICAL,
        retry: bool = False,
    ) -> None:
        """Start a call; `retry` marks it as one that was tried before."""
        super().__init__(key, deadline_s, infer_flags(priority, retry=retry), on_done)
        self._inputs = inputs
        self._signature: Signature | None = None
        self._columns: list[Array] = []
        self._outputs: list[Array] = []
        self._codes: npt.NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._open: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._failures: list[Failure] = []
        self._next = 0
        self._rows = self._left = 0

    def bound(self, signature: Signature) -> None:
        """Prepare the columns. A signature that changes half-way fails what has not been sent."""
        if self._signature is not None and self._signature != signature:
            self.fail_unsent(NotSent("the model's signature changed"))
            return
        if self._signature is None:
            self._columns, self._rows = prepare_columns(self._inputs, signature)
            self._left = self._rows
            self._outputs = zeros(signature, self._rows)
            self._codes = np.full(self._rows, _PENDING, np.uint16)
            self._open = np.ones(self._rows, np.bool_)
            self._signature = signature
        self.ready = True
        if not self._rows:
            self.unsent = False
            self.finish()

    @property
    def collected(self) -> ManyResult:
        """What came back so far."""
        if self._signature is None:
            raise AssertionError("the result of a call that never began: this is a bug")
        names = [spec.name for spec in self._signature.outputs]
        return ManyResult(dict(zip(names, self._outputs, strict=True)), self._codes, tuple(self._failures))

    @property
    def began(self) -> bool:
        """Whether the model was bound, so that `collected` has columns."""
        return self._signature is not None

    def next_piece(self, credit: CreditWindow, max_frame_nbytes: int) -> Piece | None:
        """Return the next INFER_MANY, or the next row's INFER."""
        signature = self._signature
        if signature is None:
            raise AssertionError("columns are sent before the model is bound: this is a bug")
        if signature.fixed_inputs:
            return self._next_many(signature, credit, max_frame_nbytes)
        return self._next_row(signature, credit, max_frame_nbytes)

    def _next_many(self, signature: Signature, credit: CreditWindow, max_frame_nbytes: int) -> Piece | None:
        row_nbytes = sum(spec.row_nbytes for spec in signature.inputs)
        slack = 8 * len(signature.inputs)
        fitting = (min(max_frame_nbytes, credit.nbytes_limit // 2) - slack) // row_nbytes
        most = max(1, min(fitting, credit.requests_limit // 2, _MAX_COUNT))
        count = min(self._rows - self._next, most)
        nbytes = signature.input_nbytes(count)
        _check_size(nbytes, max_frame_nbytes)
        if not credit.admits(count, nbytes):
            return None
        first = self._next
        parts: list[Buffer] = []
        for column in self._columns:
            part = column[first : first + count]
            parts += padded(array_bytes(part), part.nbytes)
        return Piece(W0_INFER_MANY, count, first, count, b"", parts, nbytes)

    def _next_row(self, signature: Signature, credit: CreditWindow, max_frame_nbytes: int) -> Piece | None:
        row = self._next
        parts: list[Buffer] = []
        nbytes = 0
        for column, spec in zip(self._columns, signature.inputs, strict=True):
            part = column[row : row + 1]
            data = bytes_tensor(part) if spec.dtype is DType.BYTES else array_bytes(part)
            parts += padded(data, len(data))
            nbytes += (len(data) + 7) & ~7
        _check_size(nbytes, max_frame_nbytes)
        if not credit.admits(1, nbytes):
            return None
        return Piece(W0_INFER, 1, row, 1, b"", parts, nbytes)

    def sent(self, flight: Flight, now_s: float) -> None:  # noqa: ARG002  rows have no times of their own
        """Note that the next rows are on their way."""
        self.flights.append(flight)
        self._next += flight.count
        self.unsent = self._next < self._rows

    def body_for(self, begin: ResultBegin, position: int) -> Body:
        """Return the rows of the output columns that the reply fills, or one buffer."""
        signature = self._confirmed(position, begin.rows)
        if not signature.fixed_outputs or begin.crc is not None:
            return Body(begin, None)
        wanted = signature.output_nbytes(begin.rows)
        if begin.payload_nbytes != wanted:
            raise misfit(f"a result of {begin.payload_nbytes} bytes, the signature says {wanted}", begin.rid)
        return Body(begin, [column[position : position + begin.rows] for column in self._outputs])

    def result(self, reply: Reply, payload: memoryview | Body, now_s: float) -> None:  # noqa: ARG002  as `sent`
        """Take the results of `reply.rows` requests."""
        signature = self._confirmed(reply.position, reply.rows)
        rows = slice(reply.position, reply.position + reply.rows)
        if not (isinstance(payload, Body) and payload.outputs is not None):
            whole = payload.whole_payload() if isinstance(payload, Body) else payload
            arrays = decode(signature, reply.rows, whole, parse_reply_meta(reply.meta)[1])
            for column, array in zip(self._outputs, arrays, strict=True):
                column[rows] = array
        self._codes[rows] = 0
        self._end(rows)

    def failed(self, position: int, count: int, error: TrioserveError) -> None:
        """Take the error of `count` requests."""
        self._confirmed(position, count)
        self._fail_rows(position, count, error)

    def flight_lost(self, flight: Flight, error: TrioserveError) -> None:
        """Take an error for the rows of a frame that have no reply."""
        still_open = np.flatnonzero(self._open[flight.first : flight.first + flight.count]) + flight.first
        for run in np.split(still_open, np.flatnonzero(np.diff(still_open) != 1) + 1):
            self._fail_rows(int(run[0]), len(run), error)

    def fail_unsent(self, error: TrioserveError) -> None:
        """Take the error of all rows that were not sent."""
        if self._signature is None:
            self.fail(error)
        elif self.unsent:
            first, self._next, self.unsent = self._next, self._rows, False
            self._fail_rows(first, self._rows - first, error)

    def _fail_rows(self, position: int, count: int, error: TrioserveError) -> None:
        rows = slice(position, position + count)
        self._codes[rows] = int(error.code)
        self._failures.append(Failure(position, count, error))
        self._end(rows)

    def _end(self, rows: slice) -> None:
        self._open[rows] = False
        self._left -= rows.stop - rows.start
        if not self._left:
            self.finish()

    def _confirmed(self, position: int, count: int) -> Signature:
        if self._signature is None:
            raise misfit("a result came before BOUND")
        if not self._open[position : position + count].all():
            raise misfit("a request was answered twice")
        return self._signature


def _check_size(nbytes: int, max_frame_nbytes: int) -> None:
    if nbytes > max_frame_nbytes:
        raise FrameTooLarge(f"a request has {nbytes} bytes, the server takes {max_frame_nbytes} in a frame")
