"""One connection's conversation, without I/O: calls go in, frames come out, replies end calls.

The transport asks `take` for what may be sent, hands what it receives to `receive`, and reports the end by `lost`.
Calls wait here in one queue, in the order in which they were made, until the window has room for them *and* the
transport can write: what has not been taken yet can still be cancelled at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from trioserve.errors import HandleNotBound, SignatureChanged, TrioserveError, error_for
from trioserve_protocol import (
    DEFAULT_LIMITS,
    Admin,
    Bound,
    Buffer,
    Connection,
    Credit,
    Error,
    ErrorCode,
    FatalError,
    FrameError,
    FrameType,
    GoAway,
    Limits,
    PeerLimits,
    Ping,
    Pong,
    RemoteProtocolError,
    Result,
    ResultBegin,
    ResultMany,
    ResultRun,
    Role,
    Signature,
    Tag,
    Welcome,
    admin_frame,
    cancel_frame,
    frame,
    frame_bytes,
    ping_frame,
    pong_frame,
    tlv,
)

from ._calls import Call, ControlCall, Flight, ModelCall, ModelKey, Reply
from ._failures import ConnectionLost, NotSent, copy_of, exception_of
from ._outbox import BindCall, Outbox
from ._outputs import Body

_CLIENT_NAME = "trioserve-python"
_MAX_PONGS = 1024
"""Answers to PINGs that may wait for the transport; a server that asks for more is not listened to any further."""


class Session:
    """The client's side of one connection.

    Attributes:
        body: Memory for the large payload that comes next; None in between.
        draining: Whether the server takes no more requests on this connection.
        ended: Why the connection is over; None while it lives.
    """

    def __init__(
        self,
        signatures: dict[ModelKey, Signature],
        limits: Limits = DEFAULT_LIMITS,
        token: bytes | None = None,
    ) -> None:
        """Start a conversation.

        Args:
            signatures: What earlier connections said about models: shared with them, and added to.
            limits: What is accepted from the server.
            token: What the server knows the client by.
        """
        self.body: Body | None = None
        self.draining = False
        self.ended: TrioserveError | None = None
        self._wire = Connection(Role.CLIENT, limits)
        self._out = Outbox(signatures)
        self._body_flight: Flight | None = None
        self._last_word: TrioserveError | None = None
        self._now_s = 0.0
        hello = _hello_meta(limits) + (b"" if token is None else tlv(Tag.AUTH, token))
        self._out.ask(
            ControlCall(lambda: None), lambda rid: frame_bytes(frame(FrameType.HELLO, rid=rid, meta=hello))
        )

    @property
    def usable(self) -> bool:
        """Whether new calls may be made on it."""
        return self.ended is None and not self.draining

    @property
    def over(self) -> bool:
        """Whether nothing more is to be had from the connection: it ended, or was drained and has answered all."""
        return self.ended is not None or (self.draining and self._out.idle)

    @property
    def max_pending_nbytes(self) -> int:
        """What the transport's receive buffer must hold."""
        return self._wire.max_pending_nbytes

    def wanted(self, pending_nbytes: int) -> int:
        """Return how much the next read should ask for at most; `pending_nbytes` were kept from earlier ones."""
        return self._wire.wanted(pending_nbytes)

    # -- calls -------------------------------------------------------------------------------------------------------

    def submit(self, call: ModelCall) -> None:
        """Make a call; its frames go out by `take`. What is wrong with it at once ends it at once."""
        self._out.submit(call)

    def ping(self, call: ControlCall) -> None:
        """Ask for a PONG."""
        self._ask(call, ping_frame)

    def admin(self, call: ControlCall, json_text: bytes) -> None:
        """Ask the server's administration; the answer is JSON text."""
        self._ask(call, lambda rid: admin_frame(rid, json_text))

    def abandon(self, call: Call) -> None:
        """Let go of a call that nobody waits for: what is in flight of it is cancelled, its replies are dropped."""
        call.done = True
        if isinstance(call, ModelCall) and call.flights:
            self._out.cancel(call)

    def take(self, now_s: float) -> list[Buffer]:
        """Return what is to be sent now: see `Outbox.take`."""
        return self._out.take(now_s)

    def _ask(self, call: ControlCall, build: Callable[[int], Buffer]) -> None:
        if self.ended is None:
            self._out.ask(call, build)
        else:
            call.fail(NotSent(self.ended.message))

    # -- the connection ----------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, now_s: float) -> int:
        """Take received bytes, oldest first.

        Returns:
            How many were used; the others are to be presented again with newer ones. While `body` is set the next
            bytes are the payload's: they go where its views say, and are reported by `body_received`.
        """
        self._now_s = now_s
        used = 0
        try:
            while self.ended is None and self.body is None:
                events, consumed = self._wire.receive(data[used:])
                used += consumed
                for event in events:
                    self._HANDLERS.get(type(event), Session._on_unexpected)(self, event)
                if not consumed or used == len(data):
                    break
        except RemoteProtocolError as error:
            self._broken(error.message)
        return used if self.ended is None else len(data)

    def body_received(self, nbytes: int, now_s: float) -> None:
        """Note that `nbytes` more bytes of the payload lie in the body's views, which have been advanced."""
        body, flight = self.body, self._body_flight
        if body is None or flight is None:
            raise AssertionError("no body is being received: this is a bug")
        if not self._wire.body_received(nbytes):
            return
        self._now_s = now_s
        self.body = self._body_flight = None
        begin = body.begin
        reply = Reply(_position(flight, begin.rid), begin.rows, begin.server_us, begin.queue_us, begin.meta)
        try:
            self._finish(flight, _ids_of(begin), reply, body)
        except RemoteProtocolError as error:
            self._broken(error.message)

    def lost(self, error: TrioserveError) -> None:
        """End the conversation: every call that waits gets the error, or one that says that it was never sent."""
        if self.ended is not None:
            return
        error = self.ended = self._last_word or error
        self.body = self._body_flight = None
        self._out.control_frames.clear()
        self._out.stop(NotSent(error.message) if error.retryable else error)
        for flight in self._out.flights:
            self._lose(flight, error)
        controls, self._out.controls = self._out.controls, {}
        for control in controls.values():
            self._control_failed(control, copy_of(error))

    def close(self, error: TrioserveError) -> None:
        """End the conversation from this side: as `lost`, and the last frame cancels what the server still runs."""
        if self.ended is None:
            self.lost(error)
            self._out.control_frames.append(cancel_frame(0))

    def _broken(self, message: str) -> None:
        self.lost(ConnectionLost(f"the server broke the protocol: {message}"))

    # -- replies -----------------------------------------------------------------------------------------------------

    def _finish(self, flight: Flight, count: int, reply: Reply, payload: memoryview | Body) -> None:
        call = flight.call
        if call is not None and not call.done:
            # Before the frame is let go: if the result does not fit, the call is among those that are lost.
            call.result(reply, payload, self._now_s)
        self._out.flights.end(flight, count)

    def _lose(self, flight: Flight, error: TrioserveError) -> None:
        call, flight.call = flight.call, None
        if call is not None and not call.done:
            call.flights.remove(flight)
            call.flight_lost(flight, copy_of(error))

    def _on_result(self, event: Result) -> None:
        flight = self._out.flights.find(event.rid)
        reply = Reply(_position(flight, event.rid), event.rows, event.server_us, event.queue_us, event.meta)
        self._finish(flight, 1, reply, event.payload)

    def _on_result_run(self, event: ResultRun) -> None:
        columns = (event.rids.tolist(), event.server_us.tolist(), event.queue_us.tolist(), event.payload)
        for rid, server_us, queue_us, row in zip(*columns, strict=True):
            result = Result(rid, 0, server_us, queue_us, event.rows, event.meta, memoryview(row))
            self._on_result(result)

    def _on_result_many(self, event: ResultMany) -> None:
        flight = self._out.flights.find(event.rid, event.rows)
        reply = Reply(_position(flight, event.rid), event.rows, event.server_us, event.queue_us, event.meta)
        self._finish(flight, event.rows, reply, event.payload)

    def _on_begin(self, event: ResultBegin) -> None:
        count = _ids_of(event)
        flight = self._out.flights.find(event.rid, count)
        if flight.call is None or flight.call.done:
            self._wire.discard_body()
            self._out.flights.end(flight, count)
            return
        self.body = flight.call.body_for(event, _position(flight, event.rid))
        self._body_flight = flight
        self._wire.accept_body()

    def _on_error(self, event: Error) -> None:
        error = exception_of(event)
        if not event.rid:
            self._connection_failed(error)
            return
        control = self._out.controls.pop(event.rid, None)
        if control is not None:
            self._control_failed(control, error)
        else:
            self._request_failed(event.rid, event.count, error)

    def _on_frame_error(self, event: FrameError) -> None:
        """A reply that cannot be used ends what it is for; there may be nothing left of that."""
        error = error_for(event.code, event.message)
        control = self._out.controls.pop(event.rid, None)
        if control is not None:
            self._control_failed(control, error)
            return
        with suppress(RemoteProtocolError):
            self._request_failed(event.rid, event.count, error)

    def _connection_failed(self, error: TrioserveError) -> None:
        """Take an ERROR of the connection: it ends no request, but the server is about to close."""
        self._last_word = (
            error if error.code.closes else ConnectionLost(f"the server gave up: {error.message}")
        )
        self.draining = True
        self._out.stop(NotSent(error.message) if self._last_word.retryable else error)

    def _request_failed(self, rid: int, count: int, error: TrioserveError) -> None:
        flight = self._out.flights.find(rid, count)
        call = flight.call
        self._out.flights.end(flight, count)
        if error.code == ErrorCode.DRAINING:
            self.draining = True
        if call is None or call.done:
            return
        if isinstance(error, SignatureChanged | HandleNotBound):
            binding = self._out.bindings.get(call.key)
            if binding is not None and binding is call.binding:
                self._out.bindings.remove(binding)
            if call.restart():
                self.submit(call)
                return
        call.failed(_position(flight, rid), count, error)

    # -- control -----------------------------------------------------------------------------------------------------

    def _control_failed(self, control: ControlCall, error: TrioserveError) -> None:
        if isinstance(control, BindCall):
            self._out.refused(control.binding, error)
        control.fail(error)

    def _answered(self, rid: int, kind: type[ControlCall] = ControlCall) -> ControlCall:
        control = self._out.controls.pop(rid, None)
        if type(control) is not kind:
            raise RemoteProtocolError(
                ErrorCode.INVALID_META, f"an answer to id {rid}, which asked for something else"
            )
        return control

    def _on_welcome(self, event: Welcome) -> None:
        self._answered(event.rid).answered(event, self._now_s)
        credit, limits = self._out.flights.credit, event.limits
        credit.requests_limit = limits.window_requests or credit.requests_limit
        credit.nbytes_limit = limits.window_kib << 10 or credit.nbytes_limit
        self._out.max_frame_nbytes = limits.max_frame_nbytes or self._out.max_frame_nbytes
        self._out.bindings.max_binds = limits.max_binds or self._out.bindings.max_binds

    def _on_bound(self, event: Bound) -> None:
        control = self._answered(event.rid, BindCall)
        if not isinstance(control, BindCall) or control.binding.handle != event.handle:
            raise RemoteProtocolError(
                ErrorCode.INVALID_META, f"BOUND of handle {event.handle}, which was not asked for"
            )
        control.answered(event, self._now_s)
        self._out.confirmed(control.binding, event.signature)

    def _on_credit(self, event: Credit) -> None:
        credit = self._out.flights.credit
        credit.requests_limit, credit.nbytes_limit = event.requests, event.nbytes

    def _on_ping(self, event: Ping) -> None:
        if len(self._out.control_frames) > _MAX_PONGS:
            raise RemoteProtocolError(
                ErrorCode.RESOURCE_EXHAUSTED, "PINGs come faster than PONGs can be sent"
            )
        self._out.control_frames.append(pong_frame(event.rid, event.payload))

    def _on_pong(self, event: Pong) -> None:
        self._answered(event.rid).answered(event.payload, self._now_s)

    def _on_admin(self, event: Admin) -> None:
        control = self._answered(event.rid)
        if event.status:
            control.fail(error_for(event.status, event.payload.decode("utf-8", "replace")))
        else:
            control.answered(event.payload, self._now_s)

    def _on_goaway(self, event: GoAway) -> None:
        self.draining = True
        error = NotSent(event.message)
        self._out.stop(error)
        for flight in self._out.flights:
            if flight.order >= event.taken:
                self._lose(flight, error)

    def _on_fatal(self, event: FatalError) -> None:
        raise RemoteProtocolError(event.code, event.message)

    def _on_unexpected(self, event: object) -> None:
        raise RemoteProtocolError(
            ErrorCode.UNKNOWN_TYPE, f"a frame {type(event).__name__} that nothing asked for"
        )

    _HANDLERS: ClassVar[dict[type, Callable[[Session, Any], None]]] = {
        Admin: _on_admin,
        Bound: _on_bound,
        Credit: _on_credit,
        Error: _on_error,
        FatalError: _on_fatal,
        FrameError: _on_frame_error,
        GoAway: _on_goaway,
        Ping: _on_ping,
        Pong: _on_pong,
        Result: _on_result,
        ResultBegin: _on_begin,
        ResultMany: _on_result_many,
        ResultRun: _on_result_run,
        Welcome: _on_welcome,
    }


def _hello_meta(limits: Limits) -> bytes:
    taken = PeerLimits(
        max_frame_nbytes=limits.max_frame_nbytes,
        max_meta_nbytes=limits.max_meta_nbytes,
        max_tensors=limits.max_tensors,
        max_bytes_elements=limits.max_bytes_elements,
    )
    return tlv(Tag.CLIENT, _CLIENT_NAME) + tlv(Tag.LIMITS, taken.encode())


def _ids_of(begin: ResultBegin) -> int:
    return begin.rows if begin.frame_type == FrameType.RESULT_MANY else 1


def _position(flight: Flight, rid: int) -> int:
    return flight.first + rid - flight.rid
