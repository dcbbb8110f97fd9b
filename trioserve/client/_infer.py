"""One request of any number of rows, and its result."""

from __future__ import annotations

from collections.abc import Callable

from trioserve.errors import FrameTooLarge, TrioserveError
from trioserve_protocol import W0_INFER, Buffer, RequestClass, ResultBegin, Signature, infer_flags

from ._calls import DataCall, Flight, ModelKey, Piece, Reply, misfit, padded
from ._credit import CreditWindow
from ._inputs import Array, Prepared, guess, prepare
from ._outputs import Body, allocate, decode, parse_reply_meta
from ._results import Inference, Outputs

_GUESS_NBYTES = 65_536
"""Requests up to this size go out together with their BIND; a larger one waits a round trip for the signature, which
costs less than to send it twice."""


class InferCall(DataCall):
    """One request.

    Attributes:
        inference: The result, once the call is done without an error.
    """

    __slots__ = (
        "_attempt",
        "_described",
        "_inputs",
        "_prepared",
        "_restarted",
        "_sent_s",
        "_signature",
        "inference",
    )

    def __init__(
        self,
        key: ModelKey,
        inputs: object,
        *,
        deadline_s: float,
        on_done: Callable[[], object],
        priority: RequestClass = RequestClass.CRITICAL,
        sampled: bool = False,
        retry: bool = False,
        attempt: int = 1,
    ) -> None:
        """Start a call; `sampled` asks for the timing, `retry` says that a server may have seen it before."""
        super().__init__(key, deadline_s, infer_flags(priority, retry=retry, sampled=sampled), on_done)
        self._attempt = attempt
        self._inputs = inputs
        self._prepared: Prepared | None = None
        self._signature: Signature | None = None
        self._described = self._restarted = False
        self._sent_s = 0.0
        self.inference: Inference | None = None

    def guess(self, hint: Signature | None) -> None:
        """Prepare the inputs from themselves; an earlier connection's signature helps but is not trusted."""
        try:
            found = guess(self._inputs) if hint is None else prepare(self._inputs, hint)
        except TrioserveError:
            return  # The model may have changed since: the confirmed signature decides.
        if found is not None and found.nbytes <= _GUESS_NBYTES:
            self._prepared = found
            self._described = self.ready = True

    def bound(self, signature: Signature) -> None:
        """Prepare the inputs; let go of a frame in flight that was guessed wrong, and be ready to send again."""
        guessed, self._prepared = self._prepared, prepare(self._inputs, signature)
        self._signature = signature
        self._described = False
        self.ready = True
        if self.flights and (guessed is None or not guessed.agrees_with(self._prepared)):
            self.flights.pop().call = None
            self.unsent = True

    def next_piece(self, credit: CreditWindow, max_frame_nbytes: int) -> Piece | None:
        """Return the request."""
        prepared = self._prepared
        if prepared is None:
            raise AssertionError("a request is sent before its inputs are prepared: this is a bug")
        meta = prepared.describe() if self._described else b""
        nbytes = len(meta) + prepared.nbytes
        if nbytes > max_frame_nbytes:
            raise FrameTooLarge(
                f"the request has {nbytes} bytes, the server takes {max_frame_nbytes} in a frame"
            )
        if not credit.admits(1, nbytes):
            return None
        parts: list[Buffer] = []
        for tensor in prepared.tensors:
            parts += padded(tensor.data, tensor.nbytes)
        return Piece(W0_INFER, prepared.rows, 0, 1, meta, parts, nbytes)

    def sent(self, flight: Flight, now_s: float) -> None:
        """Note that the request is on its way."""
        self.flights.append(flight)
        self.unsent = False
        self._sent_s = now_s

    def body_for(self, begin: ResultBegin, position: int) -> Body:
        """Return the result arrays themselves, or one buffer where they cannot be received in place."""
        signature, prepared = self._confirmed()
        if begin.rows != prepared.rows or position:
            raise misfit(f"{begin.rows} rows came back for {prepared.rows}", begin.rid)
        if not signature.fixed_outputs or begin.crc is not None:
            return Body(begin, None)
        wanted = signature.output_nbytes(begin.rows)
        if begin.payload_nbytes != wanted:
            raise misfit(f"a result of {begin.payload_nbytes} bytes, the signature says {wanted}", begin.rid)
        return Body(begin, allocate(signature, begin.rows))

    def result(self, reply: Reply, payload: memoryview | Body, now_s: float) -> None:
        """Take the result."""
        signature, prepared = self._confirmed()
        if reply.rows != prepared.rows:
            raise misfit(f"{reply.rows} rows came back for {prepared.rows}")
        timing, decls = parse_reply_meta(reply.meta)
        if isinstance(payload, Body) and payload.outputs is not None:
            arrays = list(payload.outputs)
        else:
            whole = payload.whole_payload() if isinstance(payload, Body) else payload
            arrays = decode(signature, reply.rows, whole, decls)
        names = [spec.name for spec in signature.outputs]
        values = [_without_batch(array) for array in arrays] if prepared.single else arrays
        round_trip_us = int((now_s - self._sent_s) * 1e6)
        outputs = dict(zip(names, values, strict=True))
        self.inference = Inference(
            outputs, timing, reply.server_us, reply.queue_us, round_trip_us, self._attempt
        )
        self.finish()

    def failed(self, position: int, count: int, error: TrioserveError) -> None:  # noqa: ARG002  it is one
        """End with the server's error."""
        self.fail(error)

    def flight_lost(self, flight: Flight, error: TrioserveError) -> None:  # noqa: ARG002  it has one
        """End with an error."""
        self.fail(error)

    def restart(self) -> bool:
        """Bind and send again, once."""
        again, self._restarted = not self._restarted, True
        if again:
            self._prepared = self._signature = None
            self.ready = False
            self.unsent = True
        return again

    def fail_unsent(self, error: TrioserveError) -> None:
        """End with an error if the request was not sent."""
        if self.unsent:
            self.fail(error)

    def _confirmed(self) -> tuple[Signature, Prepared]:
        if self._signature is None or self._prepared is None:
            raise misfit("a result came before BOUND")
        return self._signature, self._prepared


def _without_batch(array: Array) -> Outputs:
    row = array.reshape(array.shape[1:])
    return row.item() if row.dtype == object and not row.ndim else row
