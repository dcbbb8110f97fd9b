"""One client's socket: what has been read of an incomplete frame, and what could not be sent yet."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from trioserve.engine import Arrival, Session
    from trioserve_protocol import Connection

    from ._gather import Gather

Buffer = bytes | bytearray | memoryview

MAX_PARTS: Final = 512
"""Buffers of one `sendmsg`; the kernel takes 1,024."""


class Owner(Protocol):
    """What a peer tells the group that serves it."""

    def doom(self, peer: Peer, reason: str) -> None:
        """The connection is to be closed at the end of the turn."""
        ...

    def want_flush(self, peer: Peer) -> None:
        """The peer has small frames to be sent at the end of the turn."""
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
        "_behind",
        "_owner",
        "_send",
        "_soon",
        "_urgent",
        "arrival",
        "arrival_since_ns",
        "backlog_nbytes",
        "backlog_since_ns",
        "body_crc",
        "control_tokens",
        "control_tokens_ns",
        "doomed",
        "fd",
        "finished",
        "gather",
        "lingers_until_ns",
        "machine",
        "mask",
        "midway",
        "recv_into",
        "session",
        "singles",
        "sock",
        "stalled_since_ns",
        "step",
        "tail",
    )

    session: Session
    step: Callable[[Peer, int], int]
    """What is done when the socket is readable, the group's choice; returns what it took of the turn's budget."""

    def __init__(self, owner: Owner, sock: socket.socket, machine: Connection) -> None:
        self._owner = owner
        self.sock = sock
        self.fd = sock.fileno()
        self.machine = machine
        self.recv_into = sock.recv_into
        self._send = sock.send
        self.tail = b""
        """Bytes of an incomplete frame."""
        self.stalled_since_ns = 0
        """When the incomplete frame began, 0 if there is none."""
        self.arrival: Arrival | None = None
        self.arrival_since_ns = 0
        self.body_crc: tuple[int, bytes] | None = None
        """Expected CRC-32 of the body being received, and its meta."""
        self.midway = False
        """Whether there is an incomplete frame, or a large one was just received."""
        self._behind: deque[Buffer] = deque()
        self._urgent: deque[Buffer] = deque()
        self._soon: list[bytes] = []
        self.backlog_nbytes = 0
        self.backlog_since_ns = 0
        """Since when the backlog is above its soft limit, 0 if it is not."""
        self.control_tokens = 0.0
        self.control_tokens_ns = 0
        self.finished = False
        """The client has closed its sending side."""
        self.lingers_until_ns = 0
        """Until when what the client still sends is read and dropped, so that it can read why; 0 if it is not."""
        self.doomed = ""
        """Why the connection is to be closed at the end of the turn."""
        self.singles = 0
        """Reads in a row that brought exactly one request."""
        self.gather: Gather | None = None
        """Where its requests are received together with those of others, while they come one at a time."""
        self.mask = 0
        """Events that the group has asked for."""

    # ---------------------------------------------------------------- sending

    def write(self, data: Buffer) -> None:
        """See `ReplySink.write`."""
        if self.backlog_nbytes:
            self._keep(data)
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._owner.doom(self, f"send: {error.strerror}")
            return
        if sent != len(data):
            self._keep(memoryview(data)[sent:])

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """See `ReplySink.write_parts`."""
        at = 0
        while at < len(parts) and not self.backlog_nbytes:
            some = parts[at : at + MAX_PARTS]
            try:
                sent = self.sock.sendmsg(some)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._owner.doom(self, f"send: {error.strerror}")
                return
            at += len(some)
            if sent < sum(map(len, some)):
                # One piece, up to where a frame ends: urgent frames go between pieces.
                self._keep(b"".join([*_after(some, sent), *parts[at:]]))
                return
        if at < len(parts):
            self._keep(b"".join(parts[at:]))

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
        if not self.backlog_nbytes:
            self.write(data)
        else:
            self._urgent.append(data)
            self._grow(len(data))

    def _keep(self, data: Buffer) -> None:
        """Copies what the kernel did not take: the slots it came from are free when the turn ends."""
        if len(data):
            self._behind.append(bytes(data))
            self._grow(len(data))

    def _grow(self, nbytes: int) -> None:
        self.backlog_nbytes += nbytes
        self._owner.backlog_changed(self, nbytes)

    def flush_backlog(self) -> None:
        """Sends from the backlog what the kernel takes now."""
        behind = self._behind
        while behind:
            data = behind[0]
            try:
                sent = self._send(data)
            except BlockingIOError:
                return
            except OSError as error:
                self._owner.doom(self, f"send: {error.strerror}")
                return
            self.backlog_nbytes -= sent
            self._owner.backlog_changed(self, -sent)
            if sent < len(data):
                behind[0] = memoryview(data)[sent:]
                return
            behind.popleft()
            while self._urgent:
                behind.appendleft(self._urgent.pop())

    def shut_down(self) -> None:
        """Closes the sending side: the client has been told all it will be told."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)


def _after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of some buffers when their first `sent` bytes are gone."""
    left: list[Buffer] = []
    for part in parts:
        if sent < len(part):
            left.append(memoryview(part)[sent:] if sent else part)
        sent = max(0, sent - len(part))
    return left
