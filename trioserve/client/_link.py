"""A connected socket and its session: what can be read and written without waiting."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from trioserve.errors import TrioserveError
from trioserve.tls import TlsStream
from trioserve_protocol import Buffer

from ._failures import ConnectionLost
from ._session import Session

_ROOM_NBYTES = 64 << 10
"""Room for a read behind the largest incomplete frame."""


class Link:
    """Moves bytes between a non-blocking socket and a session.

    No method waits. `fill` may run beside `flush` in another thread; `feed` and `flush` touch the session and need
    the caller's lock where there are threads.

    Attributes:
        session: The conversation.
        sock: The socket, to wait for.
        blocked: Whether the last `flush` left bytes that the kernel did not take.
    """

    def __init__(self, sock: socket.socket | TlsStream, session: Session) -> None:
        """Take over a connected socket.

        Ownership:
            The link closes the socket.
        """
        self.session = session
        self.sock = sock
        self.blocked = False
        self._unsent: list[Buffer] = []
        # Not a bytearray: that is written with zeros at once, while pages that nothing touches cost nothing, so the
        # worst case, an answer of ADMIN, may be planned for.
        self._memory = np.empty(session.max_pending_nbytes + _ROOM_NBYTES, np.uint8).data
        self._start = self._end = 0
        self._body_nbytes = 0
        self._failure: ConnectionLost | None = None
        self._deaf = False

    @property
    def holds_input(self) -> bool:
        """Whether there is something for `fill` that the kernel does not report."""
        return isinstance(self.sock, TlsStream) and self.sock.more

    @property
    def usable(self) -> bool:
        """Whether new calls may be made on it."""
        return self.session.usable

    def flush(self, now_s: float) -> bool:
        """Send what the session has to say, as far as the kernel takes it.

        Returns:
            Whether all was sent; if not, go on when the socket is writable.
        """
        self.blocked = False
        while not self._deaf:
            if not self._unsent:
                self._unsent = self.session.take(now_s)
                if not self._unsent:
                    break
            try:
                sent = self.sock.sendmsg(self._unsent)
            except BlockingIOError:
                self.blocked = True
                return False
            except OSError:
                # Why the server listens no more may lie in the receive buffer: reading ends the connection.
                self._deaf = True
                self._unsent.clear()
                break
            self._unsent = _after(self._unsent, sent)
        if isinstance(self.sock, TlsStream) and self.sock.unsent_nbytes and not self._deaf:
            self.blocked = not self._flush_encrypted(self.sock)
        return not self.blocked

    def _flush_encrypted(self, stream: TlsStream) -> bool:
        try:
            return stream.flush()
        except OSError:
            self._deaf = True
            return True

    def fill(self) -> bool:
        """Read once.

        Returns:
            Whether there is something for `feed`: bytes, or the end of the connection.
        """
        body = self.session.body
        try:
            if body is not None:
                self._body_nbytes = self.sock.recvmsg_into(body.views)[0]
                ended = not self._body_nbytes
            else:
                self._make_room()
                wanted = self.session.wanted(self._end - self._start)
                received = self.sock.recv_into(self._memory[self._end : self._end + wanted])
                self._end += received
                ended = not received
        except BlockingIOError:
            return False
        except OSError as error:
            self._failure = ConnectionLost(f"the connection broke: {_reason(error)}")
            return True
        self._failure = ConnectionLost("the server closed the connection") if ended else None
        return True

    def feed(self, now_s: float) -> None:
        """Hand what `fill` read to the session."""
        session = self.session
        if self._failure is not None:
            session.lost(self._failure)
            return
        body = session.body
        nbytes, self._body_nbytes = self._body_nbytes, 0
        if body is not None and nbytes:
            body.advance(nbytes)
            session.body_received(nbytes, now_s)
            return
        while self._start < self._end:
            pending = self._memory[self._start : self._end]
            used = session.receive(pending, now_s)
            self._start += used
            body = session.body
            if body is not None:
                taken = body.fill_from(self._memory[self._start : self._end])
                self._start += taken
                session.body_received(taken, now_s)
                if session.body is not None:
                    break
            elif not used or session.ended is not None:
                break

    def part(self, error: TrioserveError, now_s: float) -> None:
        """Say goodbye without waiting: calls get `error`, the server a CANCEL of everything and a half-close."""
        self.session.close(error)
        self.flush(now_s)
        with suppress(OSError):  # The server was faster.
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket; nobody may be waiting for it."""
        self.sock.close()

    def _make_room(self) -> None:
        """Move what is kept to the front of the memory, if it is in the way."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            kept = self._end - self._start
            self._memory[:kept] = self._memory[self._start : self._end]
            self._start, self._end = 0, kept


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return os.strerror(error.errno or 0)


def _after(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Return what is left of `buffers` after their first `sent` bytes."""
    for index, buffer in enumerate(buffers):
        nbytes = len(buffer)
        if sent < nbytes:
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]] if sent else list(buffers[index:])
        sent -= nbytes
    return []
