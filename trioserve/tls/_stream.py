"""TLS over a non-blocking socket, as something that behaves like one.

OpenSSL works on two buffers in memory, not on the descriptor: it may then be asked for bytes and given bytes at any
time, and nothing it has begun must be repeated with the same arguments. What that costs is known: bytes may lie
here that no poller reports (`more`), and encrypted bytes that the kernel did not take (`unsent_nbytes`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from socket import MSG_PEEK
from typing import Final, Protocol, cast

Buffer = bytes | bytearray | memoryview

FETCH_NBYTES: Final = 65_536
"""Most bytes of one read from the kernel: four full records."""

PLAIN_NBYTES: Final = 65_536
"""Most bytes that are encrypted at once: with a full kernel buffer that much is kept here."""


class RawSocket(Protocol):
    """What a stream needs of a connected, non-blocking socket; `socket.socket` is one."""

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        ...

    def recv(self, nbytes: int, flags: int = 0, /) -> bytes:
        """What has come, empty at the end of the stream. Raises `BlockingIOError` when nothing has."""
        ...

    def send(self, data: Buffer, /) -> int:
        """Bytes that were taken. Raises `BlockingIOError` when there is no room."""
        ...

    def getpeername(self) -> object:
        """Who is at the other end."""
        ...

    def close(self) -> None:
        """Closes both directions."""
        ...


def _nothing() -> None:
    pass


class TlsStream:
    """One end of a TLS connection, with the methods of a non-blocking socket.

    Args:
        sock: connected, non-blocking.
        context: certificates and versions.
        server_side: which end this is.
        server_hostname: whose certificate a client expects.

    Attributes:
        more: whether there are bytes to be read that the kernel does not know of.
        on_more: called when a read leaves such bytes.

    Ownership: `close` closes the socket.
    """

    def __init__(
        self,
        sock: RawSocket,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.sock: Final = sock
        self._received: Final = ssl.MemoryBIO()
        self._encrypted: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(
            self._received, self._encrypted, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent = memoryview(b"")
        self._ended = False
        self.more = False
        self.on_more: Callable[[], None] = _nothing

    @property
    def unsent_nbytes(self) -> int:
        """Encrypted bytes that wait for the kernel; `flush` sends them."""
        return len(self._unsent) + self._encrypted.pending

    @property
    def version(self) -> str:
        """What was agreed: `TLSv1.3`, say."""
        return self._tls.version() or ""

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def getpeername(self) -> object:
        """Who is at the other end."""
        return self.sock.getpeername()

    def peek(self, nbytes: int) -> bytes:
        """The first bytes that have come, as they came, before any was taken. Raises `BlockingIOError` without any."""
        return self.sock.recv(nbytes, MSG_PEEK)

    def handshake(self) -> None:
        """Goes on with the handshake; returns when it is complete.

        Raises:
            BlockingIOError: the other end's turn; call again when the socket is readable or, with unsent bytes,
                writable.
            OSError: the other end has gone, or (`ssl.SSLError`) is not to be talked to. It is told why.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._fetch()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()
                raise
            else:
                self.flush()
                self.more = self._has_more()
                return

    def recv_into(self, buffer: memoryview, /) -> int:
        """As `socket.recv_into`; as much as fits, of what has come.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the stream was cut off, or is not what was sent: 0, the end, is only what the other end says.
        """
        size, taken, fetched = len(buffer), 0, 0
        try:
            while taken < size and not self._ended:
                if not self.more:
                    fetched = self._fetch()
                count = self._read(buffer[taken:])
                taken += count
                self.more = bool(count) and self._has_more()
                if not self.more and fetched < FETCH_NBYTES:
                    break
        except BlockingIOError:
            self.more = False
        self.more = self.more or self._ended
        if self.more:
            self.on_more()
        if not taken and size and not self._ended:
            raise BlockingIOError
        return taken

    def recvmsg_into(self, buffers: Sequence[memoryview], /) -> tuple[int, int]:
        """As `socket.recvmsg_into`; the second number means nothing."""
        total = 0
        for buffer in buffers:
            try:
                count = self.recv_into(buffer)
            except BlockingIOError:
                if total:
                    break
                raise
            total += count
            if count < len(buffer):
                break
        return total, 0

    def send(self, data: Buffer, /) -> int:
        """As `socket.send`. What was taken may still be here: see `unsent_nbytes`."""
        if not self.flush():
            raise BlockingIOError
        view, taken = memoryview(data), 0
        while taken < len(view):
            taken += self._tls.write(view[taken : taken + PLAIN_NBYTES])
            if not self.flush():
                break
        return taken

    def sendmsg(self, parts: Sequence[Buffer], /) -> int:
        """As `send`, of several buffers."""
        return self.send(parts[0] if len(parts) == 1 else b"".join(parts))

    def flush(self) -> bool:
        """Sends what is encrypted; whether all of it has left."""
        while True:
            if not self._unsent:
                if not self._encrypted.pending:
                    return True
                self._unsent = memoryview(self._encrypted.read())
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    def abandon(self) -> None:
        """Drops what is encrypted and not sent; the other end will see a stream that is cut off."""
        self._unsent = memoryview(b"")
        self._encrypted.read()

    def shutdown(self, how: int, /) -> None:
        """Tells the other end that nothing more comes; whatever it says itself can still be read."""
        del how
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()  # tells, and then finds that the other end has not told yet
        self.flush()

    def close(self) -> None:
        """Closes the socket; if the kernel takes it at once, the other end is told that this was the end."""
        if self.sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.shutdown(1)
            self.sock.close()

    def _has_more(self) -> bool:
        return bool(self._tls.pending() or self._received.pending)

    def _fetch(self) -> int:
        """Takes what the kernel has; 0 at the end of the stream, which is only in order after the other end said so."""
        data = self.sock.recv(FETCH_NBYTES)
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()
        return len(data)

    def _read(self, buffer: memoryview) -> int:
        """Decrypts one record, or what is left of one, into a buffer; 0 if none is complete."""
        try:
            count = self._tls.read(len(buffer), cast("bytearray", buffer))  # any writable buffer
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            count = b""
        if not count:
            self._ended = True
            return 0
        return int(cast("int", count))
