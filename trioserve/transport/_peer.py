"""One client's socket: what has been read of an incomplete frame, and what could not be sent yet."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ._backlog import Backlog, Buffer

if TYPE_CHECKING:
    from trioserve.engine import Arrival, Session
    from trioserve_protocol import Connection

    from ._entrance import Access
    from ._gather import Gather

MAX_PARTS: Final = 512
"""Buffers of one `sendmsg`; the kernel takes 1,024."""


class Socket(Protocol):
    """What a peer needs of a connected, non-blocking stream socket; `socket.socket` is one."""

    def fileno(self) -> int:
        """The descriptor, as the poller knows it."""
        ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Bytes received, 0 at the end of the stream. Raises `BlockingIOError` when there are none yet."""
        ...

    def send(self, data: Buffer, /) -> int:
        """Bytes that were taken. Raises `BlockingIOError` when there is no room."""
        ...

    def sendmsg(self, parts: Sequence[Buffer], /) -> int:
        """As `send`, of several buffers."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Closes one direction."""
        ...

    def getpeername(self) -> object:
        """Who it is, for the log."""
        ...

    def close(self) -> None:
        """Closes both directions."""
        ...


class Owner(Protocol):
    """What a peer tells the group that serves it."""

    def doom(self, peer: Peer, reason: str) -> None:
        """The connection is to be closed at the end of the turn."""
        ...

    def want_flush(self, peer: Peer) -> None:
        """The peer has small frames to be sent at the end of the turn, or may be owed nothing any more."""
        ...

    def backlog_changed(self, peer: Peer, nbytes: int) -> None:
        """The peer's unsent bytes grew or shrank by `nbytes`."""
        ...


class Peer:
    """A connection of a group. Its methods are those of `ReplySink`: they never wait.

    Args:
        owner: the group.
        sock: connected, non-blocking.
        machine: the protocol's server side.

    Ownership: the group closes the socket.
    """

    __slots__ = (
        "_backlog",
        "_owner",
        "_send",
        "_soon",
        "access",
        "address",
        "arrival",
        "arrival_since_ns",
        "backlog_nbytes",
        "backlog_since_ns",
        "control_tokens",
        "control_tokens_ns",
        "doomed",
        "due_ns",
        "ending",
        "fd",
        "finished",
        "gather",
        "lingers_until_ns",
        "machine",
        "mask",
        "max_frames",
        "midway",
        "recv_into",
        "session",
        "singles",
        "sock",
        "stalled_since_ns",
        "step",
        "tail",
        "tail_ns",
        "unparsed",
    )

    session: Session
    access: Access
    """What it may do."""
    address: str
    """What it is counted under, empty if it is not."""
    step: Callable[[Peer, int], int]
    """What is done when the socket is readable, the reader's choice; returns what it took of the turn's budget."""

    def __init__(self, owner: Owner, sock: Socket, machine: Connection) -> None:
        self._owner = owner
        self.sock = sock
        self.fd = sock.fileno()
        self.machine = machine
        self.recv_into = sock.recv_into
        self._send: Callable[[Buffer], int] = sock.send
        self.tail = b""
        """Bytes received and not consumed: an incomplete frame, or, if `unparsed`, whole frames too."""
        self.tail_ns = self.max_frames = 0
        """When the first of the tail was read; frames that one turn may handle, by what the last ones cost, 0 for the
        configured limit."""
        self.unparsed = False
        """Whether the tail is to be parsed before more is read."""
        self.stalled_since_ns = 0
        """When the incomplete frame began, 0 if there is none."""
        self.arrival: Arrival | None = None
        self.arrival_since_ns = 0
        self.midway = False
        """Whether there is a tail, or a large frame was just received."""
        self._backlog: Backlog | None = None
        self._soon: list[bytes] = []
        self.backlog_nbytes = 0
        self.backlog_since_ns = 0
        """Since when the backlog is above its soft limit, 0 if it is not."""
        self.control_tokens, self.control_tokens_ns = 0.0, 0
        self.finished = False
        """The client has closed its sending side."""
        self.lingers_until_ns = self.due_ns = 0
        """Until when what the client still sends is read and dropped, so that it can read why; when it must have
        authenticated, or is told that it did not. 0: not at all."""
        self.ending = ""
        """Why the connection has been dismissed."""
        self.doomed = ""
        """Why the connection is to be closed at the end of the turn."""
        self.singles = 0
        """Reads in a row that brought exactly one request."""
        self.gather: Gather | None = None
        """Where its requests are received together with those of others, while they come one at a time."""
        self.mask = 0
        """Events that the group has asked for."""

    @property
    def name(self) -> str:
        """Who it is, for the log: address and port, or as much as is known."""
        try:
            return str(self.sock.getpeername() or "unix")
        except OSError:
            return f"disconnected, descriptor {self.fd}"

    @property
    def is_paused(self) -> bool:
        """Whether nothing is taken from it for now: it sent too many control frames, or does not read its replies."""
        return self.control_tokens < 0 or bool(self.backlog_since_ns)

    @property
    def holds_input(self) -> bool:
        """Whether its socket has bytes that no poller reports."""
        return False

    # ---------------------------------------------------------------- sending

    def write(self, data: Buffer) -> None:
        """See `ReplySink.write`."""
        if self.backlog_nbytes:
            self._keep(data, 0)
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._owner.doom(self, "disconnected")
            return
        if sent != len(data):
            self._keep(data, sent)
        elif self.finished:
            self._owner.want_flush(self)

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """See `ReplySink.write_parts`."""
        sent = at = 0
        try:
            while at < len(parts) and not self.backlog_nbytes and not self.doomed:
                some = parts[at : at + MAX_PARTS]
                taken = self.sock.sendmsg(some)
                sent += taken
                at += len(some)
                if taken < sum(map(len, some)):
                    break
        except BlockingIOError:
            pass
        except OSError:
            self._owner.doom(self, "disconnected")
            return
        if sent < sum(map(len, parts)):
            self._keep(b"".join(parts), sent)
        elif self.finished:
            self._owner.want_flush(self)

    def write_soon(self, data: bytes) -> None:
        """See `ReplySink.write_soon`."""
        if not self._soon:
            self._owner.want_flush(self)
        self._soon.append(data)

    def flush_soon(self) -> None:
        """Sends the small frames of this turn. They pass whole frames that wait in the backlog."""
        if not self._soon:
            return
        data = b"".join(self._soon)
        self._soon.clear()
        if self._backlog is None or not self.backlog_nbytes:
            self.write(data)
        else:
            self._backlog.keep_urgent(data)
            self._backlog_is(self._backlog.nbytes)

    def _keep(self, data: Buffer, sent: int) -> None:
        if self.doomed:
            return
        if self._backlog is None:
            self._backlog = Backlog()
        self._backlog.keep(data, sent)
        self._backlog_is(self._backlog.nbytes)

    def _backlog_is(self, nbytes: int) -> None:
        change = nbytes - self.backlog_nbytes
        self.backlog_nbytes = nbytes
        self._owner.backlog_changed(self, change)

    def flush_backlog(self) -> None:
        """Sends from the backlog what the kernel takes now."""
        backlog = self._backlog
        while backlog is not None and self.backlog_nbytes:
            head = backlog.head
            try:
                sent = self._send(head)
            except BlockingIOError:
                return
            except OSError:
                self._owner.doom(self, "disconnected")
                return
            backlog.advance(sent)
            self._backlog_is(backlog.nbytes)
            if sent < len(head):
                return
        self._backlog = None
        self._owner.want_flush(self)

    def drop_backlog(self) -> None:
        """Gives the unsent bytes up, and all that is written later.

        The connection must be doomed: the client would find the middle of a frame where the next one should begin.
        """
        self._send = len
        self._backlog = None
        self._backlog_is(0)

    def shut_down(self) -> None:
        """Closes the sending side: the client has been told all it will be told."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)


class Nobody:
    """The sink of a session whose connection is closed: it keeps nothing of that alive."""

    def write(self, data: Buffer) -> None:
        """Drops it."""

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Drops them."""

    def write_soon(self, data: bytes) -> None:
        """Drops it."""


NOBODY: Final = Nobody()
