"""A connection whose bytes are encrypted: what differs from a plain one stands here, so that plain ones never ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ._peer import Owner, Peer

if TYPE_CHECKING:
    from trioserve.tls import TlsStream
    from trioserve_protocol import Connection

    from ._backlog import Buffer
    from ._peer import Socket


class TlsPeer(Peer):
    """A peer over TLS.

    Its backlog counts what is encrypted and not sent as well: then the group waits until it is writable, and the
    limits for slow readers hold.

    Args:
        owner: the group.
        stream: over a connected, non-blocking socket.
        machine: the protocol's server side.
    """

    __slots__ = ("tls",)

    def __init__(self, owner: Owner, stream: TlsStream, machine: Connection) -> None:
        super().__init__(owner, stream, machine)
        self.tls = stream

    @property
    def holds_input(self) -> bool:
        """See `Peer.holds_input`."""
        return self.tls.more

    def write(self, data: Buffer) -> None:
        """See `ReplySink.write`."""
        super().write(data)
        self.note_unsent()

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """See `ReplySink.write_parts`."""
        super().write_parts(parts)
        self.note_unsent()

    def flush_backlog(self) -> None:
        """See `Peer.flush_backlog`."""
        backlog = self._backlog
        try:
            while self.tls.flush() and backlog is not None and backlog.nbytes:
                backlog.advance(self.tls.send(backlog.head))
        except OSError:
            self._owner.doom(self, "disconnected")
            return
        if backlog is not None and not backlog.nbytes:
            self._backlog = None
        self.note_unsent()
        if not self.backlog_nbytes:
            self._owner.want_flush(self)

    def note_unsent(self) -> None:
        """Counts what is not sent: encrypted or not."""
        nbytes = self._backlog.nbytes if self._backlog is not None else 0
        if nbytes + self.tls.unsent_nbytes != self.backlog_nbytes:
            self._backlog_is(nbytes)

    def _backlog_is(self, nbytes: int) -> None:
        super()._backlog_is(nbytes + self.tls.unsent_nbytes)

    def drop_backlog(self) -> None:
        """See `Peer.drop_backlog`."""
        self.tls.abandon()
        super().drop_backlog()

    def become_plain(self) -> None:
        """Talks without TLS from now on, to a client that does not speak it."""
        self.sock = cast("Socket", self.tls.sock)
        self.recv_into = self.sock.recv_into
        self._send = self.sock.send
