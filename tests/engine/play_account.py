"""What a client got, and the accounts that must add up: one terminal frame for each request, with its own result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from trioserve_protocol import Connection, Error, ErrorCode, Result, ResultMany, Role, pad8


@dataclass
class Reply:
    """How one request ended."""

    rid: int
    code: ErrorCode
    values: tuple[bytes, ...] = ()
    """Result rows of each output."""
    message: str = ""
    frame: Any = None
    """The event of the frame that ended it."""


class Account:
    """A `ReplySink` that reads what it is given, and what it is owed."""

    def __init__(self) -> None:
        self.replies: dict[int, Reply] = {}
        """How each id ended that is not in flight."""
        self.order: list[int] = []
        """Ids in the order in which they ended."""
        self.frames: list[Any] = []
        self.refused: list[Error] = []
        """Errors of id 0."""
        self.writes = 0
        self.expected: dict[int, tuple[bytes, ...] | None] = {}
        """What each id must get, if it gets a result; None for whatever it is."""
        self.owed: Counter[int] = Counter()
        """Terminal frames that each id must still get."""
        self._sending: list[list[int]] = []
        self.ended: dict[int, trio.Event] = {}
        """For tests in virtual time: set when the id ends."""
        self.gone = False

    # ------------------------------------------------------------ what is owed

    def owe(self, rids: Iterable[int], *, together: bool = False) -> None:
        """Requests with these ids are being sent, one a frame or all of them together in one."""
        self._sending = [list(rids)] if together else [[rid] for rid in rids]
        for frame in self._sending:
            for rid in frame:
                self.expected.setdefault(rid, None)
                if not self.owed[rid]:
                    self.replies.pop(rid, None)
                self.owed[rid] += 1

    def _expect(self, rid: int, values: tuple[bytes, ...] | None) -> None:
        if not self.owed[rid]:
            self.expected[rid] = values

    def _forgive(self, refusal: Error) -> None:
        """A frame was refused that has an id in flight: it gets no terminal frame."""
        frames = list(self._sending)
        if refusal.code == ErrorCode.RID_IN_FLIGHT:
            named = int(refusal.message.split()[1])
            frames = [frame for frame in frames if named in frame]
            assert self.owed[named] > 1, "the id that is said to be in flight is not"
        self._sending.remove(frames[0])
        for rid in frames[0]:
            self.owed[rid] -= 1

    # ------------------------------------------------------------ ReplySink

    def write(self, data: Any) -> None:
        self.writes += 1
        self._take(bytes(data))

    def write_parts(self, parts: Sequence[Any]) -> None:
        self.writes += 1
        self._take(b"".join(bytes(part) for part in parts))

    def write_soon(self, data: bytes) -> None:
        self._take(bytes(data))

    def _take(self, data: bytes) -> None:
        assert not self.gone, "a reply to a closed session"
        events, consumed = Connection(Role.CLIENT, vector_from=10**9).receive(
            memoryview(data), max_frames=10**6
        )
        assert consumed == len(data), "replies are whole frames"
        for event in events:
            self.frames.append(event)
            if isinstance(event, Error):
                self._take_error(event)
            else:
                assert isinstance(event, Result | ResultMany), event
                self._take_result(event)

    def _take_error(self, event: Error) -> None:
        assert isinstance(event.code, ErrorCode)
        assert event.retryable == event.code.retryable
        if event.rid == 0:
            assert event.count == 1
            self.refused.append(event)
            self._forgive(event)
            return
        for rid in range(event.rid, event.rid + event.count):
            self._end(Reply(rid, event.code, message=event.message, frame=event))

    def _take_result(self, event: Result | ResultMany) -> None:
        many = isinstance(event, ResultMany)
        rids = range(event.rid, event.rid + event.rows) if many else [event.rid]
        rows_each = 1 if many else event.rows
        tensors = []
        at = 0
        for row_nbytes in (16, 3):
            nbytes = row_nbytes * event.rows
            tensors.append(bytes(event.payload[at : at + nbytes]))
            at += pad8(nbytes)
        assert len(event.payload) in (0, at)
        for index, rid in enumerate(rids):
            values = tuple(
                tensor[index * rows_each * size : (index + 1) * rows_each * size]
                for tensor, size in zip(tensors, (16, 3), strict=True)
            )
            self._end(Reply(rid, ErrorCode.OK, values, frame=event))

    def _end(self, reply: Reply) -> None:
        rid = reply.rid
        assert self.owed[rid] > 0, f"id {rid} was answered twice, or never sent"
        self.owed[rid] -= 1
        if reply.code == ErrorCode.OK and reply.frame.payload and self.expected[rid] is not None:
            assert reply.values == self.expected[rid], f"id {rid} got another's result"
        if not self.owed[rid]:
            self.replies[rid] = reply
        self.order.append(rid)
        if rid in self.ended:
            self.ended.pop(rid).set()

    # ------------------------------------------------------------ what the test asks

    def code(self, rid: int) -> ErrorCode | None:
        """How an id ended; None while it has not."""
        return self.replies[rid].code if rid in self.replies else None

    def codes(self, rids: Iterable[int] | None = None) -> list[ErrorCode | None]:
        return [self.code(rid) for rid in (sorted(self.expected) if rids is None else rids)]

    @property
    def waiting(self) -> set[int]:
        return {rid for rid, count in self.owed.items() if count}
