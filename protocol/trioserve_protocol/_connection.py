"""The protocol machine of one connection, without I/O."""

from enum import Enum
from struct import Struct
from typing import Final
from zlib import crc32

from ._codes import ErrorCode
from ._errors import LocalProtocolError, RemoteProtocolError
from ._events import Event, FatalError, FrameError, InferBegin, ResultBegin
from ._fast import Bounds, take_infers, take_results
from ._header import HEADER, HEADER_NBYTES, MAGIC_WORD, W0_ADMIN, W0_BIND, W0_HELLO
from ._hints import bad_start, fatal
from ._limits import DEFAULT_LIMITS, Limits
from ._meta import parse_meta
from ._registry import IGNORABLE_TYPE, MAX_RID, Feature, Flag
from ._rules import CLIENT_RULES, SERVER_RULES, Head, Rule, header_fault, queue_us

READ_NBYTES: Final = 256 << 10
"""What a caller should read at once when nothing speaks against it, bytes."""

VECTOR_FROM: Final = 6
"""Least frames in a run.

`receive` of n frames of 544 bytes takes 0.5 + 0.55 n µs one by one, and 6.5 µs as columns (7.9 at n = 256), so for
parsing alone columns pay from 11 frames on. What the caller saves with them (one copy and one decision instead of n,
0.5 µs each at least) moves the crossover to 6. Python 3.11, numpy 2.4, one core.
"""

_CRC: Final = int(Flag.CRC)
_U32_AT: Final = Struct("<I").unpack_from

# States. Plain integers: an IntEnum member costs 30 ns more at each test.
_READY: Final = 0
_ASKED: Final = 1  # A Begin event is out; the caller has neither accepted nor discarded the body.
_ACCEPTED: Final = 2
_DISCARDING: Final = 3
_AFTER_LARGE: Final = (
    4  # The next payload is, or may be, a large one: reads stay short, so that it lands in place.
)
_CLOSED: Final = 5


class Role(Enum):
    """Which side of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class Connection:
    """Turns received bytes into events, for a server or a client.

    Bytes go in by `receive`; what it does not consume the caller keeps and presents again, followed by newer
    bytes. There is no method to send: encoders are functions, since nothing that is sent changes this state.

    Attributes:
        limits: What is accepted from the peer.
        features: Optional parts that are agreed; set it when WELCOME is sent or received.
        body_remaining: Payload bytes of the current large body still to come; 0 = none.
        more: Whether the last `receive` stopped for `max_frames` with bytes left that it has not looked at.
    """

    __slots__ = (
        "_bounds",
        "_large_nbytes",
        "_read_limit",
        "_rules",
        "_started",
        "_state",
        "_take",
        "body_remaining",
        "features",
        "limits",
        "more",
    )

    def __init__(
        self,
        role: Role,
        limits: Limits = DEFAULT_LIMITS,
        *,
        large_nbytes: int = 65_536,
        vector_from: int = VECTOR_FROM,
        features: Feature = Feature(0),  # noqa: B008 - immutable
    ) -> None:
        """Start a connection.

        Args:
            role: This side's role.
            limits: What is accepted from the peer.
            large_nbytes: Payloads above this many bytes are announced by a Begin event when they are not whole.
            vector_from: Least frames in a run, at least 2; a very large number turns columns off.
            features: Optional parts that are agreed from the start.
        """
        server = role is Role.SERVER
        self.limits = limits
        self.features = features
        self.body_remaining = 0
        self.more = False
        self._rules = SERVER_RULES if server else CLIENT_RULES
        self._take = take_infers if server else take_results
        self._bounds = Bounds(limits.max_frame_nbytes, limits.max_meta_nbytes >> 3, max(vector_from, 2))
        self._large_nbytes = large_nbytes
        self._state = _READY
        self._started = False
        self._read_limit = 0

    @property
    def max_pending_nbytes(self) -> int:
        """Most bytes that `receive` can leave unconsumed while it asks for more: the caller's buffer must hold them."""
        limits = self.limits
        data = limits.max_meta_nbytes + self._large_nbytes
        control = limits.max_control_nbytes
        if self._rules is CLIENT_RULES:
            control = max(control, limits.max_admin_reply_nbytes)
        return HEADER_NBYTES + max(data, control)

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, *, max_frames: int = 256) -> tuple[list[Event], int]:
        """Parse whole frames from the start of `data`.

        Args:
            data: All bytes not consumed yet, oldest first: contiguous, format 'B'.
            max_frames: Frames after which to stop; see `more`.

        Returns:
            Events in order, and how many bytes were consumed. Bytes left over mean "present them again with newer
            ones". A Begin event is the last of its call: `accept_body` or `discard_body` must follow.

        Raises:
            LocalProtocolError: A fatal error was given out before, or a large body waits for the caller.

        Ownership:
            Payloads are views of `data`: copy what must outlive the next write to that memory.
        """
        events: list[Event] = []
        pos, end, left = 0, len(data), max_frames
        if self._state != _READY:
            pos = self._resume(data, events)
            if self._state != _READY:
                self.more = False
                return events, pos
        take, bounds = self._take, self._bounds
        while True:
            pos, left = take(data, pos, left, events, bounds)
            if not left or pos == end:
                break
            after = self._take_any(data, pos, events)
            if after == pos:
                break
            pos, left = after, left - 1
            if self._state != _READY:
                break
        self.more = not left and pos < end
        if pos:
            self._started = True
        return events, pos

    def wanted(self, pending: int) -> int:
        """Return how many bytes the next read should ask for at most.

        Args:
            pending: Bytes that the caller keeps because `receive` did not consume them.

        Returns:
            The rest of a large body; after one, and while the header of one is incomplete, what is missing of
            header and meta, so that no payload is read into the receive buffer; else READ_NBYTES.
        """
        if self._state == _ACCEPTED:
            return self.body_remaining
        if self._read_limit:
            return max(self._read_limit - pending, 1)
        return READ_NBYTES

    def accept_body(self) -> None:
        """After a Begin event: the caller receives the payload itself and reports it by `body_received`.

        It starts with the bytes that the last `receive` did not consume.
        """
        self._leave_asked(_ACCEPTED)

    def discard_body(self) -> None:
        """After a Begin event, or in the middle of an accepted body: `receive` skips what is left of the payload."""
        if self._state == _ACCEPTED:
            self._state = _DISCARDING
        else:
            self._leave_asked(_DISCARDING)
        self._read_limit = 0

    def body_received(self, nbytes: int) -> bool:
        """Report that the caller took `nbytes` more payload bytes; returns whether the frame is complete."""
        if self._state != _ACCEPTED or not 0 <= nbytes <= self.body_remaining:
            raise LocalProtocolError(f"no body of {nbytes} more bytes is being received")
        self.body_remaining -= nbytes
        if self.body_remaining:
            return False
        self._state = _AFTER_LARGE
        return True

    def _leave_asked(self, state: int) -> None:
        if self._state != _ASKED:
            raise LocalProtocolError("no large body waits for a decision")
        self._state = state

    # -- off the fast path ---------------------------------------------------------------------------------------

    def _resume(self, data: memoryview, events: list[Event]) -> int:
        """Go on from a state other than READY; returns the bytes consumed."""
        if self._state == _DISCARDING:
            skipped = min(len(data), self.body_remaining)
            self.body_remaining -= skipped
            if not self.body_remaining:
                self._state = _READY
            return skipped
        if self._state == _AFTER_LARGE:
            # Until one header is there, which decides how to go on.
            if len(data) < HEADER_NBYTES:
                return self._incomplete_header(data, 0, events)
            self._state, self._read_limit = _READY, 0
            return 0
        if self._state == _CLOSED:
            raise LocalProtocolError("received bytes after a fatal error")
        raise LocalProtocolError("received bytes while a large body waits for the caller")

    def _incomplete_header(self, data: memoryview, pos: int, events: list[Event]) -> int:
        """Judge a frame's first four bytes as soon as they are there, so that strangers get an answer at once."""
        if len(data) - pos >= 4 and _U32_AT(data, pos)[0] & 0xFF_FFFF != MAGIC_WORD:
            return self._fail(data, events, bad_start(bytes(data[pos : pos + 4])))
        return pos

    def _take_any(self, data: memoryview, pos: int, events: list[Event]) -> int:
        """Handle one frame of any type; returns where the next one starts, or `pos` if more bytes are needed."""
        after = self._incomplete_header(data, pos, events)
        if after != pos or len(data) - pos < HEADER_NBYTES:
            return after
        head = Head._make(HEADER.unpack_from(data, pos))
        failure = self._framing_fault(head)
        if failure is not None:
            return self._fail(data, events, failure)
        kind = head.w0 >> 24
        rule = self._rules.get(kind)
        if rule is None:
            if not kind & IGNORABLE_TYPE:
                message = f"frame type {kind:#04x} is not implemented here"
                events.append(FrameError(head.rid, ErrorCode.UNKNOWN_TYPE, message, 1))
            return self._skip(data, pos, head)
        refusal = self._refusal(head, rule, first=not (self._started or pos))
        if refusal is not None:
            events.append(_refused(head, rule, refusal.code, refusal.message))
            return self._skip(data, pos, head)
        if pos + HEADER_NBYTES + head.body > len(data):
            return self._incomplete_frame(data, pos, head, rule, events)
        events.append(self._event(data, pos, head, rule))
        return pos + HEADER_NBYTES + head.body

    def _framing_fault(self, head: Head) -> FatalError | None:
        """Return why the end of this frame, and so the start of the next one, cannot be trusted."""
        if head.body & 7:
            return fatal(ErrorCode.INVALID_SIZE, f"body of {head.body} bytes is not a multiple of 8")
        if head.body > self.limits.max_frame_nbytes:
            most = self.limits.max_frame_nbytes
            return fatal(ErrorCode.FRAME_TOO_LARGE, f"body of {head.body} bytes is larger than {most}")
        if head.meta8 << 3 > head.body:
            return fatal(ErrorCode.INVALID_META, f"meta of {head.meta8 << 3} bytes in a body of {head.body}")
        return None

    def _refusal(self, head: Head, rule: Rule, *, first: bool) -> RemoteProtocolError | None:
        """Return why a frame is refused by its header alone."""
        refusal = header_fault(head, rule, self.features)
        if refusal is not None:
            return refusal
        if head.w0 == W0_HELLO and not first:
            return RemoteProtocolError(
                ErrorCode.FAILED_PRECONDITION, "HELLO is not the first frame", head.rid
            )
        if rule.data is not None:
            if head.meta8 << 3 > self.limits.max_meta_nbytes:
                message = f"meta of {head.meta8 << 3} bytes is larger than {self.limits.max_meta_nbytes}"
                return RemoteProtocolError(ErrorCode.INVALID_META, message, head.rid)
        elif head.body > self._max_control_nbytes(head):
            message = f"control frame of {head.body} bytes is larger than {self._max_control_nbytes(head)}"
            return RemoteProtocolError(ErrorCode.INVALID_SIZE, message, head.rid)
        return None

    def _max_control_nbytes(self, head: Head) -> int:
        if head.w0 == W0_ADMIN and self._rules is CLIENT_RULES:
            return self.limits.max_admin_reply_nbytes
        return self.limits.max_control_nbytes

    def _incomplete_frame(
        self, data: memoryview, pos: int, head: Head, rule: Rule, events: list[Event]
    ) -> int:
        """Announce a large body whose header and meta are there; else ask for more bytes."""
        start = pos + HEADER_NBYTES
        payload_at = start + (head.meta8 << 3)
        payload_nbytes = head.body - (head.meta8 << 3)
        if rule.data is None or payload_nbytes <= self._large_nbytes:
            return pos
        self._read_limit = payload_at - pos
        if payload_at > len(data):
            self._state = _AFTER_LARGE
            return pos
        events.append(self._begin(head, bytes(data[start:payload_at]), payload_nbytes))
        self.body_remaining = payload_nbytes
        self._state = _ASKED
        return payload_at

    def _begin(self, head: Head, meta: bytes, nbytes: int) -> Event:
        kind, crc = head.w0 >> 24, head.aux if head.flags & _CRC else None
        if self._rules is SERVER_RULES:
            return InferBegin(kind, head.rid, head.handle, head.flags, head.tmo, head.rows, meta, nbytes, crc)
        return ResultBegin(kind, head.rid, head.flags, head.tmo, queue_us(head), head.rows, meta, nbytes, crc)

    def _event(self, data: memoryview, pos: int, head: Head, rule: Rule) -> Event:
        """Return the event of a whole frame whose header is in order."""
        start = pos + HEADER_NBYTES
        payload_at, stop = start + (head.meta8 << 3), start + head.body
        if head.flags & _CRC and crc32(data[start:stop]) != head.aux:
            message = "CRC-32 of the body does not match"
            return _refused(head, rule, ErrorCode.CRC_MISMATCH, message)
        meta, payload = bytes(data[start:payload_at]), data[payload_at:stop]
        if rule.data is not None:
            return rule.data(head, meta, payload)
        if rule.control is None:
            raise AssertionError("a rule decodes neither data nor control: this is a bug")
        if payload and not rule.has_payload:
            message = f"{len(payload)} bytes after the meta of a frame without payload"
            return _refused(head, rule, ErrorCode.INVALID_SIZE, message)
        try:
            return rule.control(head, parse_meta(meta, rule.tags, self.limits), payload)
        except RemoteProtocolError as error:
            return _refused(head, rule, error.code, error.message)

    def _skip(self, data: memoryview, pos: int, head: Head) -> int:
        """Leave out a frame; returns where the next one starts."""
        stop = pos + HEADER_NBYTES + head.body
        if stop <= len(data):
            return stop
        self.body_remaining = stop - len(data)
        self._state = _DISCARDING
        return len(data)

    def _fail(self, data: memoryview, events: list[Event], failure: FatalError) -> int:
        """Give out a fatal error and consume everything: nothing after it can be understood."""
        if self._rules is CLIENT_RULES:
            failure = failure._replace(reply=b"")
        events.append(failure)
        self._state = _CLOSED
        return len(data)


def _refused(head: Head, rule: Rule, code: ErrorCode, message: str) -> FrameError:
    """Return the refusal of a frame of a known type."""
    count = requests = 1
    if rule.many:
        requests = max(head.rows, 1)
        count = requests if head.rid and head.rid + requests - 1 <= MAX_RID else 1
    unbinds = head.handle if head.w0 == W0_BIND else 0
    return FrameError(head.rid, code, message, count, requests if rule.requests else 0, unbinds)


def crc_matches(begin: "InferBegin | ResultBegin", payload: memoryview) -> bool:
    """Return whether the payload received after a Begin event has the CRC-32 that the header promised."""
    return begin.crc is None or crc32(payload, crc32(begin.meta)) == begin.crc
