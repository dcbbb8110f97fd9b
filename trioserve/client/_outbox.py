"""The sending half of a connection: calls wait in order for the window, and become frames when the transport writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trioserve.errors import TrioserveError
from trioserve_protocol import DEFAULT_LIMITS, HEADER_NBYTES, Buffer, Signature, cancel_frame, timeout_us

from ._binding import Binding, Bindings
from ._calls import ControlCall, DataCall, ModelCall, ModelKey
from ._failures import copy_of
from ._flights import Flights

_TAKE_NBYTES = 256 << 10
_TAKE_BUFFERS = 256
_MAX_CANCEL = 0xFFFF


class BindCall(ControlCall):
    """The BIND of a handle."""

    __slots__ = ("binding",)

    def __init__(self, binding: Binding) -> None:
        super().__init__(lambda: None)
        self.binding = binding


class Outbox:
    """What a client has said on a connection, and will say.

    Attributes:
        flights: Request frames sent and not answered.
        bindings: The model handles.
        controls: Control calls in flight by their id.
        control_frames: Control frames to be sent next, before any request.
        max_frame_nbytes: Largest body that the server takes.
    """

    def __init__(self, signatures: dict[ModelKey, Signature]) -> None:
        """Start with what earlier connections said about models."""
        self.flights = Flights()
        self.bindings = Bindings()
        self.controls: dict[int, ControlCall] = {}
        self.control_frames: list[Buffer] = []
        self.max_frame_nbytes = DEFAULT_LIMITS.max_frame_nbytes
        self._signatures = signatures
        self._stopped: TrioserveError | None = None
        self._queue: deque[ModelCall] = deque()
        self._next_rid = 1

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the server."""
        return not (self.flights or self._queue or self.controls)

    def ask(self, call: ControlCall, build: Callable[[int], Buffer]) -> None:
        """Send a control frame that has an answer; `build` makes it from its id."""
        rid = self._next_rid
        self._next_rid += 1
        self.controls[rid] = call
        self.control_frames.append(build(rid))

    def submit(self, call: ModelCall) -> None:
        """Put a call in the queue, or with those that wait for its model; what is wrong with it ends it at once."""
        if self._prepare(call):
            self._queue.append(call)

    def _prepare(self, call: ModelCall) -> bool:
        """Make a call fit for the queue; returns whether it belongs there."""
        if self._stopped is not None:
            call.fail_unsent(copy_of(self._stopped))
            return False
        call.ready = False
        binding = call.binding = self.bindings.get(call.key) or self._bind(call.key)
        if binding is None:
            return True  # Every handle waits for the server. So does the call, in its place.
        try:
            if binding.signature is not None:
                call.bound(binding.signature)
            else:
                call.guess(self._signatures.get(call.key))
                binding.waiting.append(call)
        except TrioserveError as error:
            call.fail_unsent(error)
        return call.ready and call.unsent

    def confirmed(self, binding: Binding, signature: Signature) -> None:
        """Take the signature of a binding: calls that waited for it go on, those that guessed it wrong go again."""
        binding.signature = self._signatures[binding.key] = signature
        waiting, binding.waiting = binding.waiting, []
        for call in waiting:
            if call.done:
                continue
            queued = call.ready and call.unsent
            try:
                call.bound(signature)
            except TrioserveError as error:
                self.fail(call, error)
                continue
            if call.unsent and not queued:
                self._send_again(call)

    def refused(self, binding: Binding, error: TrioserveError) -> None:
        """Take the failure of a BIND: it is that of all calls that waited for it."""
        self.bindings.remove(binding)
        for call in binding.waiting:
            if not call.done:
                self.fail(call, copy_of(error))

    def fail(self, call: ModelCall, error: TrioserveError) -> None:
        """End a call; replies that still come for it are dropped."""
        for flight in call.flights:
            flight.call = None
        call.flights.clear()
        call.fail(error)

    def _send_again(self, call: ModelCall) -> None:
        if self._stopped is None:
            self._queue.append(call)
        else:
            call.fail_unsent(copy_of(self._stopped))

    def stop(self, error: TrioserveError) -> None:
        """Send no more requests: what was not sent gets an error, now and later."""
        self._stopped = error
        calls = [*self._queue, *self.bindings.clear()]
        self._queue.clear()
        for call in calls:
            call.fail_unsent(copy_of(error))

    def cancel(self, call: ModelCall) -> None:
        """Send CANCEL for what is in flight of a call; replies that still come for it are dropped."""
        ranges: list[tuple[int, int]] = []
        for flight in call.flights:
            flight.call = None
            first, count = ranges[-1] if ranges else (0, 0)
            if count and first + count == flight.rid and count + flight.count <= _MAX_CANCEL:
                ranges[-1] = (first, count + flight.count)
            else:
                ranges.append((flight.rid, flight.count))
        call.flights.clear()
        self.control_frames += [cancel_frame(first, count) for first, count in ranges]

    def take(self, now_s: float) -> list[Buffer]:
        """Return what is to be sent now, in order; once taken it must be sent whole, or the connection is lost.

        Returns:
            Buffers for `sendmsg`, about 256 KiB or one frame; empty if there is nothing or no credit for it.
        """
        buffers = self._take_control()
        nbytes = 0
        while self._queue and nbytes < _TAKE_NBYTES and len(buffers) < _TAKE_BUFFERS:
            call = self._queue[0]
            if not call.done and (call.binding is None or call.binding is not self.bindings.get(call.key)):
                if not self._prepare(call):
                    self._queue.popleft()
                elif call.binding is None:
                    break
                # After what was taken before: a BIND changes what its handle stands for.
                buffers += self._take_control()
                continue
            taken = 0 if call.done else self._take_frame(call, buffers, now_s)
            if call.done or not call.unsent:
                self._queue.popleft()
            elif not taken:
                break
            nbytes += taken
        return buffers

    def _take_control(self) -> list[Buffer]:
        """Take the control frames as one buffer: there may be more CANCELs than a `sendmsg` takes buffers."""
        frames, self.control_frames = self.control_frames, []
        return [b"".join(frames)] if len(frames) > 1 else frames

    def _take_frame(self, call: ModelCall, buffers: list[Buffer], now_s: float) -> int:
        """Append the call's next frame; returns its size, or 0 if there is no credit or the call has failed."""
        if not isinstance(call, DataCall):
            raise AssertionError("a call without requests is ready to be sent: this is a bug")  # noqa: TRY004
        left_us = timeout_us((call.deadline_s - now_s) * 1e9)
        if left_us is None:
            call.expire()
            return 0
        try:
            piece = call.next_piece(self.flights.credit, self.max_frame_nbytes)
        except TrioserveError as error:
            call.fail_unsent(error)
            return 0
        if piece is None:
            return 0
        binding = self.bindings.get(call.key)
        if binding is None:
            raise AssertionError("a queued call lost its binding unnoticed: this is a bug")
        rid = self._next_rid
        self._next_rid += piece.requests
        call.sent(self.flights.add(call, rid, piece), now_s)
        buffers += piece.frame(rid, binding.handle, call.flags, left_us)
        return HEADER_NBYTES + piece.nbytes

    def _bind(self, key: ModelKey) -> Binding | None:
        binding = self.bindings.add(key)
        if binding is not None:
            self.ask(BindCall(binding), binding.frame)
        return binding
