"""Calls: what a caller waits for, as a state machine that a session drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trioserve.errors import DeadlineInQueue, TrioserveError
from trioserve_protocol import HEADER, Buffer, ErrorCode, RemoteProtocolError, ResultBegin, Signature

from ._credit import CreditWindow
from ._outputs import Body

_JOIN_NBYTES = 8192
"""Frames up to this size are joined: below it one buffer is cheaper than a scatter list (and lets go of the caller's
array at once)."""

_PAD = tuple(bytes(n) for n in range(8))


def padded(data: Buffer, nbytes: int) -> list[Buffer]:
    """Return `data` and the zeros that fill it up to a multiple of 8."""
    return [data, _PAD[-nbytes & 7]] if nbytes & 7 else [data]


def misfit(message: str, rid: int = 0) -> RemoteProtocolError:
    """Return the error for a reply that its request cannot have."""
    return RemoteProtocolError(ErrorCode.INVALID_SIZE, message, rid)


class ModelKey(NamedTuple):
    """What a handle stands for."""

    model: str
    version: int
    """0 = the newest."""
    tenant: str | None


class Piece(NamedTuple):
    """What a call wants to send as one frame."""

    w0: int
    rows: int
    first: int
    """Position of its first request within the call."""
    requests: int
    """How many it carries."""
    meta: bytes
    parts: Sequence[Buffer]
    nbytes: int
    """Of the body."""

    def frame(self, rid: int, handle: int, flags: int, timeout_us: int) -> list[Buffer]:
        """Return the frame as buffers for `sendmsg`; large payloads are the caller's own memory."""
        meta = self.meta
        head = HEADER.pack(self.w0, self.nbytes, rid, handle, flags, timeout_us, len(meta) >> 3, self.rows, 0)
        if self.nbytes <= _JOIN_NBYTES:
            return [b"".join((head, meta, *self.parts))]
        return [head + meta, *self.parts]


class Flight:
    """One request frame on its way: ids `rid` to `rid + count - 1`.

    Attributes:
        call: Whose it is; None once nobody waits for it any more, then its replies are dropped.
        first: Position of its first request within the call.
        left: Ids that have no terminal reply yet.
        order: Requests sent on the connection before it.
    """

    __slots__ = ("call", "count", "first", "left", "nbytes", "order", "rid")

    def __init__(self, call: DataCall, rid: int, piece: Piece, order: int) -> None:
        self.call: DataCall | None = call
        self.rid = rid
        self.count = self.left = piece.requests
        self.first = piece.first
        self.nbytes = piece.nbytes
        self.order = order


class Reply(NamedTuple):
    """A RESULT or RESULT_MANY, or one row of a run of RESULTs."""

    position: int
    """Of its first request within the call."""
    rows: int
    server_us: int
    queue_us: int
    meta: bytes


class Call:
    """Something a caller waits for.

    Attributes:
        done: Whether the outcome is known, or nobody waits for it.
        error: The outcome if it is an error.
    """

    __slots__ = ("done", "error", "on_done")

    def __init__(self, on_done: Callable[[], object]) -> None:
        """Start a call; `on_done` is called once, when the outcome is known."""
        self.on_done = on_done
        self.done = False
        self.error: TrioserveError | None = None

    def finish(self) -> None:
        """Make the outcome known."""
        if not self.done:
            self.done = True
            self.on_done()

    def fail(self, error: TrioserveError) -> None:
        """End the call with an error."""
        if not self.done:
            self.error = error
            self.finish()


class ControlCall(Call):
    """A call answered by one control frame: BIND, PING, ADMIN.

    Attributes:
        answer: What came, as its event says it.
        ended_s: When it came.
    """

    __slots__ = ("answer", "ended_s")

    def __init__(self, on_done: Callable[[], object]) -> None:
        super().__init__(on_done)
        self.answer: Any = None
        self.ended_s = 0.0

    def answered(self, answer: object, now_s: float) -> None:
        """Take the answer."""
        self.answer = answer
        self.ended_s = now_s
        self.finish()


class ModelCall(Call, ABC):
    """A call that needs a model's signature.

    Attributes:
        key: The model.
        binding: The handle it was prepared for; only its identity matters.
        flights: Its frames that have no terminal reply yet.
        ready: Whether it can be sent: false while it waits for the signature.
        unsent: Whether there is something of it that was not sent.
    """

    __slots__ = ("binding", "flights", "key", "ready", "unsent")

    def __init__(self, key: ModelKey, on_done: Callable[[], object]) -> None:
        super().__init__(on_done)
        self.key = key
        self.binding: object = None
        self.flights: list[Flight] = []
        self.ready = False
        self.unsent = True

    def guess(self, hint: Signature | None) -> None:
        """Get ready without a confirmed signature, if that is possible."""

    @abstractmethod
    def bound(self, signature: Signature) -> None:
        """Get ready with the signature that the server confirmed; what is in flight by a wrong guess is to go again.

        Raises:
            TrioserveError: the inputs do not fit it.
        """

    @abstractmethod
    def fail_unsent(self, error: TrioserveError) -> None:
        """Take an error for all that was not sent."""


class DataCall(ModelCall):
    """A call that sends requests and costs credit.

    Attributes:
        deadline_s: Absolute; infinity for none.
        flags: Of its frames.
    """

    __slots__ = ("deadline_s", "flags")

    def __init__(self, key: ModelKey, deadline_s: float, flags: int, on_done: Callable[[], object]) -> None:
        super().__init__(key, on_done)
        self.deadline_s = deadline_s
        self.flags = flags

    @abstractmethod
    def next_piece(self, credit: CreditWindow, max_frame_nbytes: int) -> Piece | None:
        """Return the next frame, or None while there is no credit for it.

        Raises:
            TrioserveError: no server would take it.
        """

    @abstractmethod
    def sent(self, flight: Flight, now_s: float) -> None:
        """Note that the piece is on its way."""

    @abstractmethod
    def body_for(self, begin: ResultBegin, position: int) -> Body:
        """Return memory for a large reply; raises RemoteProtocolError if it does not fit the signature."""

    @abstractmethod
    def result(self, reply: Reply, payload: memoryview | Body, now_s: float) -> None:
        """Take a reply; raises RemoteProtocolError if it does not fit the signature."""

    @abstractmethod
    def failed(self, position: int, count: int, error: TrioserveError) -> None:
        """Take the server's error for `count` requests."""

    @abstractmethod
    def flight_lost(self, flight: Flight, error: TrioserveError) -> None:
        """Take an error for all requests of a frame that have no reply."""

    def restart(self) -> bool:
        """Get ready to be sent again because the model's handle was not valid any more; returns whether it will be."""
        return False

    def expire(self) -> None:
        """Note that the deadline has passed before all was sent."""
        self.fail_unsent(DeadlineInQueue("the deadline passed before the request could be sent"))


class SignatureCall(ModelCall):
    """Asks for a model's signature.

    Attributes:
        signature: The answer, once the call is done without an error.
    """

    __slots__ = ("signature",)

    def __init__(self, key: ModelKey, on_done: Callable[[], object]) -> None:
        super().__init__(key, on_done)
        self.signature: Signature | None = None

    def bound(self, signature: Signature) -> None:
        """Take the answer."""
        self.signature = signature
        self.unsent = False
        self.finish()

    def fail_unsent(self, error: TrioserveError) -> None:
        """End with an error."""
        self.fail(error)
