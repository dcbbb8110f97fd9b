"""The connections of a group: how they begin, what they may do at the moment, and every way in which they end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from trioserve.tls import TlsStream
from trioserve_protocol import Connection, ErrorCode, Role, error_frame

from ._census import Census, counted_address
from ._control import Control
from ._doorkeeper import Doorkeeper
from ._entrance import OPEN, Entrance
from ._peer import NOBODY, Peer, Socket
from ._poller import GONE, READABLE, WRITABLE, Poller
from ._reader import Reader
from ._tls_peer import TlsPeer
from ._watch import Watch

if TYPE_CHECKING:
    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake
    from trioserve.request import Clock
    from trioserve.tls import RawSocket
    from trioserve_protocol import Limits

log = structlog.get_logger(__name__)

MAX_TURNED_AWAY: Final = 64
"""Connections past the limit that are kept until they have read why; more of them are closed at once."""


class Connections:
    """Open connections. Closing is deferred to `settle`: a descriptor number may come back within one list of events.

    Args:
        engine: models and sessions.
        intake: takes requests.
        config: limits of connections and turns.
        wire_limits: what the protocol machines accept.
        clock: read only where no turn brings a time with it.
        server_id: random number of this server process.
        poller: told of every descriptor.
        max_peers: the most connections that one turn reads from.

    Ownership: closes what `add` was given.
    """

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        config: ServerConfig,
        wire_limits: Limits,
        *,
        clock: Clock,
        server_id: int,
        poller: Poller,
        max_peers: int,
    ) -> None:
        self._engine: Final = engine
        self._limits: Final = config.limits
        self._wire_limits: Final = wire_limits
        self._clock: Final = clock
        self._poller: Final = poller
        self.peers: Final[dict[int, Peer]] = {}
        """By descriptor."""
        self.watch: Final = Watch(self, config.limits)
        self.control: Final = Control(engine, intake, server_id, self.statistics)
        self.reader: Final = Reader(
            self,
            engine,
            intake,
            self.control,
            self.watch,
            config,
            wire_limits=wire_limits,
            max_peers=max_peers,
        )
        self._doorkeeper: Final = Doorkeeper(self, self.reader, self.control, self.watch, config)
        self._census: Final = Census()
        self._dirty: list[Peer] = []
        self._doomed: list[Peer] = []
        self._turned_away: Final[set[int]] = set()
        self._accepted = 0
        self._refused: Final[Counter[str]] = Counter()
        self._endings: Final[Counter[str]] = Counter()

    def statistics(self) -> dict[str, Any]:
        """What is counted, as JSON values."""
        return {
            "open": len(self.peers),
            "accepted": self._accepted,
            "turned_away": self._refused.total(),
            "turned_away_for": dict(self._refused),
            "addresses": self._census.addresses,
            "authentication": self._doorkeeper.statistics(),
            "unsent_nbytes": self.watch.backlog_nbytes,
            "large_bodies": {
                "direct_nbytes": self.reader.bodies.direct_nbytes,
                "copied_nbytes": self.reader.bodies.copied_nbytes,
            },
            "closed": dict(self._endings),
        }

    # ---------------------------------------------------------------- how they begin

    def add(self, sock: Socket, entrance: Entrance = OPEN) -> bool:
        """Serves a connected, non-blocking socket that came in by an entrance. One too many is told so, and closed.

        Returns:
            Whether it is served.

        Raises:
            OSError: the kernel has no room for it; the socket is closed.
        """
        address = _address_of(sock)
        excess = self._excess(address, entrance)
        if excess and (entrance.tls or len(self._turned_away) >= MAX_TURNED_AWAY):
            sock.close()
            return False
        try:
            self._poller.register(sock.fileno(), READABLE)
        except BaseException:
            sock.close()
            raise
        peer = self._peer(sock, entrance)
        peer.address = address
        peer.mask = READABLE
        peer.session = self._engine.open_session(peer)
        self.watch.opened(peer)
        self.peers[peer.fd] = peer
        self._census.enter(address)
        if excess:
            self._turned_away.add(peer.fd)
            reply = error_frame(0, ErrorCode.TOO_MANY_CONNECTIONS, excess)
            self.dismiss(peer, reply, "turned away", self._clock.now_ns())
            return False
        self._doorkeeper.meet(peer, entrance, self._clock.now_ns())
        self._accepted += 1
        return True

    def _peer(self, sock: Socket, entrance: Entrance) -> Peer:
        machine = Connection(Role.SERVER, self._wire_limits)
        if entrance.tls is None:
            return Peer(self, sock, machine)
        context = entrance.tls.current(self._clock.now_ns())
        return TlsPeer(self, TlsStream(cast("RawSocket", sock), context, server_side=True), machine)

    def _excess(self, address: str, entrance: Entrance) -> str:
        """Of which there are too many for one more connection, in words for its client; empty if of nothing."""
        limits = self._limits
        if len(self.peers) - len(self._turned_away) >= limits.max_connections:
            which, message = "server", f"the server has {limits.max_connections:,} connections"
        elif self._census.of(address) >= limits.max_connections_per_address:
            which = "address"
            message = f"this address has {limits.max_connections_per_address:,} connections"
        elif not entrance.is_open and self._doorkeeper.waiting >= limits.max_unauthenticated:
            which = "unauthenticated"
            message = f"{limits.max_unauthenticated:,} connections have not authenticated yet"
        else:
            return ""
        self._refused[which] += 1
        return message

    # ---------------------------------------------------------------- what they may do

    def backlog_changed(self, peer: Peer, nbytes: int) -> None:
        """See `Owner.backlog_changed`."""
        self.watch.backlog_changed(peer, nbytes, self._clock.now_ns(), self.peers.values())
        self.update_mask(peer)

    def update_mask(self, peer: Peer) -> None:
        """Asks for what this connection can use now: no reads from a client that does not read."""
        if peer.finished:
            mask = 0
        elif peer.lingers_until_ns or not peer.is_paused:
            mask = READABLE
            self.reader.resume(peer)
        else:
            mask = 0
        if peer.backlog_nbytes:
            mask |= WRITABLE
        if mask != peer.mask and peer.fd in self.peers:
            peer.mask = mask
            self._poller.modify(peer.fd, mask)

    def rare_events(self, peer: Peer, mask: int) -> bool:
        """Handles what is not "readable" alone; whether the connection is readable and still to be served."""
        if mask & GONE:
            # HUP and ERR cannot be masked: both directions are gone, nobody will read a reply.
            self.doom(peer, peer.ending or "disconnected")
        elif mask & WRITABLE:
            peer.flush_backlog()
        return bool(mask & READABLE) and not peer.doomed

    def overdue(self, peer: Peer, now_ns: int) -> None:
        """See `Keeper.overdue`."""
        self._doorkeeper.overdue(peer, now_ns)

    def want_flush(self, peer: Peer) -> None:
        """See `Owner.want_flush`."""
        self._dirty.append(peer)

    # ---------------------------------------------------------------- how they end

    def part(self, peer: Peer) -> None:
        """See `Keeper.part`."""
        self.update_mask(peer)
        self._dirty.append(peer)

    def dismiss(self, peer: Peer, reply: bytes, reason: str, now_ns: int) -> None:
        """See `Keeper.dismiss`. Its requests are cancelled, and answered before the client is told why."""
        self._engine.cancel(peer.session)
        self.reader.stop(peer)
        if reply:
            peer.write_soon(reply)
        peer.ending = reason
        self.watch.linger(peer, now_ns)
        self.part(peer)

    def dismiss_all(self, reason: str, now_ns: int) -> None:
        """Closes our side of every connection, behind all that was written."""
        for peer in self.peers.values():
            if not peer.lingers_until_ns:
                self.dismiss(peer, b"", reason, now_ns)

    def doom(self, peer: Peer, reason: str) -> None:
        """See `Owner.doom`."""
        if not peer.doomed:
            peer.doomed = reason
            self._doomed.append(peer)

    def failed(self, peer: Peer, error: Exception, now_ns: int) -> None:
        """What goes wrong in one connection closes that connection and no other."""
        if isinstance(error, BlockingIOError):
            return  # readable no more
        if isinstance(error, OSError):
            self.doom(peer, "disconnected")
            return
        log.error("connection_failed", client=peer.name, exc_info=error)
        if peer.lingers_until_ns:
            self.doom(peer, "server bug")
        else:
            self.dismiss(peer, error_frame(0, ErrorCode.INTERNAL), "server bug", now_ns)

    def settle(self) -> None:
        """Flushes what was written in this turn, and closes what is to be closed."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for peer in dirty:
                peer.flush_soon()
                if peer.finished or peer.lingers_until_ns:
                    self._close_if_done(peer)
        while self._doomed:
            self._close(self._doomed.pop())

    def _close_if_done(self, peer: Peer) -> None:
        """Once all that a connection is owed has left, our side is closed, and all of it if both sides are."""
        if peer.session.inflight or peer.backlog_nbytes or peer.doomed:
            return
        if peer.finished:
            self.doom(peer, peer.ending or "done")
        else:
            peer.shut_down()

    def _close(self, peer: Peer) -> None:
        peer.flush_soon()
        self._poller.unregister(peer.fd)
        del self.peers[peer.fd]
        self.reader.ready.pop(peer.fd, None)
        self._turned_away.discard(peer.fd)
        self._doorkeeper.forget(peer)
        self._census.leave(peer.address)
        self.watch.forget(peer)
        self._engine.close_session(peer.session)
        peer.session.sink = NOBODY
        self._endings[peer.doomed] += 1
        log.debug("connection_closed", fd=peer.fd, reason=peer.doomed)
        peer.sock.close()

    def close(self, reason: str) -> None:
        """Closes every connection at once."""
        for peer in list(self.peers.values()):
            self.doom(peer, reason)
        while self._doomed:
            self._close(self._doomed.pop())
        self._dirty.clear()


def _address_of(sock: Socket) -> str:
    try:
        return counted_address(sock.getpeername())
    except OSError:
        return ""  # it has gone again
