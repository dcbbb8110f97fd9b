"""A connection group: one Trio task that serves many connections in turns.

A task wake-up costs about 25 us, more than a small request in all. So the group is the task, and a connection is
an object in it: the task sleeps until the group's epoll set is readable, then handles every connection that is
ready in one turn, in this order: timers, completions, reads, decisions, flush.

A turn is bounded in frames, bytes and time, all connections together, and each connection within it; what is left
stays readable, or on the list of connections whose bytes are in user space already, and is served in the next turn.
Closing is deferred to the end of the turn: a descriptor number may come back within one list of events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from trioserve_protocol import Connection, ErrorCode, Role, error_frame, goaway_frame

from ._control import Control
from ._peer import NOBODY, Peer, Socket
from ._poller import GONE, READABLE, WRITABLE, EpollPoller, Poller
from ._reader import Reader
from ._watch import Watch

if TYPE_CHECKING:
    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake
    from trioserve.request import Clock
    from trioserve_protocol import Limits

log = structlog.get_logger(__name__)

MAX_EVENTS: Final = 256
SOON_NS: Final = 500_000
SOON_S: Final = 0.001
"""While a batch is expected back within `SOON_NS` the group waits for it in its own epoll set, at most this long:
going to sleep and being woken through the loop would cost it 20 us more. Other tasks wait no longer than that."""

MAX_TURNED_AWAY: Final = 64
"""Connections past the limit that are kept until they have read why; more of them are closed at once."""


class ConnectionGroup:
    """Connections that one task serves, with the descriptors that must be served in the same breath.

    Args:
        engine: models and sessions.
        intake: takes requests.
        config: limits of connections and turns.
        wire_limits: what the protocol machines accept.
        clock: read once a turn.
        server_id: random number of this server process.
        poller: where it waits; an epoll set if there is none.

    Ownership: the group closes what `add` gave it, and everything when `run` ends or `close` is called.
    """

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        config: ServerConfig,
        wire_limits: Limits,
        clock: Clock,
        server_id: int,
        poller: Poller | None = None,
    ) -> None:
        self._engine: Final = engine
        self._limits: Final = config.limits
        self._wire_limits: Final = wire_limits
        self._clock: Final = clock
        self._poller: Final = poller or EpollPoller()
        self._peers: Final[dict[int, Peer]] = {}
        self._stages: Final[dict[int, Callable[[int], None]]] = {}
        self._dirty: list[Peer] = []
        self._doomed: list[Peer] = []
        self._served: Final[set[int]] = set()
        """While turns end before everything is read: who had a turn, and stands behind the others in the next one."""
        self._watch: Final = Watch(self, config.limits)
        control = Control(engine, server_id, self.statistics)
        self._reader: Final = Reader(self, engine, intake, control, self._watch, config, wire_limits)
        self._turn_ns: Final = config.limits.turn_us * 1000
        self._quiet: trio.Event | None = None
        self._turned_away: Final[set[int]] = set()
        self._accepted = 0
        self._refused = 0
        self._endings: Final[Counter[str]] = Counter()
        self._closed = False

    # ---------------------------------------------------------------- from outside

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._peers)

    @property
    def unsent_nbytes(self) -> int:
        """Reply bytes that wait for slow readers."""
        return self._watch.backlog_nbytes

    def statistics(self) -> dict[str, Any]:
        """What is counted of connections, as JSON values."""
        return {
            "open": len(self._peers),
            "accepted": self._accepted,
            "turned_away": self._refused,
            "unsent_nbytes": self._watch.backlog_nbytes,
            "closed": dict(self._endings),
        }

    def add(self, sock: Socket) -> None:
        """Serves a connected, non-blocking socket from the next turn on. One too many is told so, and closed.

        Raises:
            OSError: the kernel has no room for it; the socket is closed.
        """
        excess = len(self._peers) - len(self._turned_away) >= self._limits.max_connections
        if excess:
            self._refused += 1
            if len(self._turned_away) >= MAX_TURNED_AWAY:
                sock.close()
                return
        try:
            self._poller.register(sock.fileno(), READABLE)
        except BaseException:
            sock.close()
            raise
        peer = Peer(self, sock, Connection(Role.SERVER, self._wire_limits))
        peer.mask = READABLE
        peer.session = self._engine.open_session(peer)
        self._reader.open(peer)
        self._watch.opened(peer)
        self._peers[peer.fd] = peer
        if excess:
            self._turned_away.add(peer.fd)
            reply = error_frame(0, ErrorCode.TOO_MANY_CONNECTIONS)
            self.dismiss(peer, reply, "turned away", self._clock.now_ns())
            self.settle()
        else:
            self._accepted += 1

    def watch_stage(self, fd: int, collect: Callable[[int], None]) -> None:
        """Calls `collect(now_ns)` in every turn in which a worker's link is readable."""
        if not self._closed:
            self._stages[fd] = collect
            self._poller.register(fd, READABLE)

    def unwatch_stage(self, fd: int) -> None:
        """Forgets a link, before its descriptor is closed."""
        if self._stages.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def goaway(self, message: str) -> None:
        """Tells every client how many of its requests were taken; later ones are never executed."""
        for peer in self._peers.values():
            if not peer.lingers_until_ns:
                peer.write_soon(goaway_frame(peer.session.taken, message))
        self.settle()

    def hang_up(self) -> None:
        """Closes our side of every connection, behind all that was written.

        Each is gone when its client has closed its own side, or a second later: closing both at once, with unread
        bytes, would make the kernel take back what was written.
        """
        now_ns = self._clock.now_ns()
        for peer in self._peers.values():
            if not peer.lingers_until_ns:
                self.dismiss(peer, b"", "server stopped", now_ns)
        self.settle()

    def settle(self) -> None:
        """Decides and flushes after something that did not come from the group's own descriptors."""
        if self._closed:
            return
        now_ns = self._clock.now_ns()
        self._finish_turn(now_ns)
        if self._reader.ready:
            self._poller.arm(now_ns)  # the task sleeps, and no descriptor will wake it

    async def wait_quiet(self) -> None:
        """Returns when every request is answered and every reply has left."""
        await self._wait_until(lambda: not self._engine.unanswered and not self._watch.backlog_nbytes)

    async def wait_empty(self) -> None:
        """Returns when no connection is left."""
        await self._wait_until(lambda: not self._peers)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        self.settle()
        while not is_so():
            self._quiet = trio.Event()
            await self._quiet.wait()

    # ---------------------------------------------------------------- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled.

        Cancellation: every connection is closed and its requests are cancelled.
        """
        engine, ready = self._engine, self._reader.ready
        poll, now_ns = self._poller.poll, self._clock.now_ns
        task_status.started()
        yielded_ns = now_ns()
        try:
            while True:  # noqa: ASYNC913  it sleeps when there is nothing to do, and gives way when its time is over
                turn_ns = now_ns()
                if turn_ns - yielded_ns > self._turn_ns:
                    # Before the poll: others may close and open descriptors meanwhile.
                    await trio.lowlevel.checkpoint()
                    yielded_ns = turn_ns = now_ns()
                events = poll(0, MAX_EVENTS)
                if not events and not ready:
                    if engine.completes_by(turn_ns + SOON_NS):
                        events = poll(SOON_S, MAX_EVENTS)
                    if not events:
                        await self._poller.wait()
                        yielded_ns = now_ns()
                        continue
                self._turn(events, now_ns())
        finally:
            self.close()

    def _turn(self, events: list[tuple[int, int]], now_ns: int) -> None:
        reader, stages = self._reader, self._stages
        reader.frames_left = self._limits.turn_frames
        reader.nbytes_left = self._limits.turn_nbytes
        self._engine.expire(now_ns)
        for fd, _ in events:
            if fd in stages:
                stages[fd](now_ns)
        if reader.ready:
            self._parse_ready(now_ns)
        self._read_all(events, now_ns)
        self._finish_turn(now_ns)

    def _parse_ready(self, now_ns: int) -> None:
        """Connections whose bytes are here already; half of a turn, so that they cannot keep the others out."""
        ready, clock_ns = self._reader.ready, self._clock.now_ns
        half, end_ns = self._reader.frames_left // 2, now_ns + self._turn_ns // 2
        for _ in range(len(ready)):
            peer = ready.pop(next(iter(ready)))
            try:
                self._reader.parse_kept(peer, now_ns)
            except Exception as error:  # noqa: BLE001  one connection's failure
                self._failed(peer, error, now_ns)
            if self._reader.frames_left <= half or clock_ns() > end_ns:
                break

    def _read_all(self, events: list[tuple[int, int]], now_ns: int) -> None:
        """Reads from every connection that is ready, as far as the budget goes; the others are first next time."""
        peers, clock_ns, reader, served = self._peers, self._clock.now_ns, self._reader, self._served
        end_ns = now_ns + self._turn_ns
        if served:
            events.sort(key=lambda event: event[0] in served)
            if events and events[0][0] in served:
                served.clear()
        for index, (fd, mask) in enumerate(events):
            peer = peers.get(fd)
            if peer is None:
                self._own_event(fd, now_ns)
                continue
            if mask != READABLE and not self._rare_events(peer, mask):
                continue
            try:
                peer.step(peer, now_ns)
            except Exception as error:  # noqa: BLE001  one connection's failure
                self._failed(peer, error, now_ns)
            if (
                reader.frames_left <= 0
                or reader.nbytes_left <= 0
                or (index & 15 == 15 and clock_ns() > end_ns)
            ):
                served.update(fd for fd, _ in events[: index + 1])
                return
        served.clear()

    def _own_event(self, fd: int, now_ns: int) -> None:
        if fd == self._poller.timer_fd:
            self._poller.acknowledge()
            self._watch.sweep(now_ns)

    def _failed(self, peer: Peer, error: Exception, now_ns: int) -> None:
        """What goes wrong in one connection closes that connection and no other."""
        if isinstance(error, BlockingIOError):
            return  # readable no more
        if isinstance(error, OSError):
            self.doom(peer, "disconnected")
            return
        log.error("connection_failed", fd=peer.fd, exc_info=error)
        if peer.lingers_until_ns:
            self.doom(peer, "server bug")
        else:
            self.dismiss(peer, error_frame(0, ErrorCode.INTERNAL), "server bug", now_ns)

    def _finish_turn(self, now_ns: int) -> None:
        """Decides, flushes, closes, and sets the timer to whatever is due next."""
        engine = self._engine
        engine.decide(now_ns)
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for peer in dirty:
                peer.flush_soon()
                if peer.finished or peer.lingers_until_ns:
                    self._close_if_done(peer)
        while self._doomed:
            self._close(self._doomed.pop())
        if self._quiet is not None:
            self._quiet.set()
        self._poller.arm(min(engine.next_event_ns(), self._watch.next_sweep_ns(now_ns)))

    # ---------------------------------------------------------------- the peers' owner

    def doom(self, peer: Peer, reason: str) -> None:
        """See `Owner.doom`."""
        if not peer.doomed:
            peer.doomed = reason
            self._doomed.append(peer)

    def dismiss(self, peer: Peer, reply: bytes, reason: str, now_ns: int) -> None:
        """See `Keeper.dismiss`. Its requests are cancelled, and answered before the client is told why."""
        self._engine.cancel(peer.session)
        self._reader.stop(peer)
        if reply:
            peer.write_soon(reply)
        peer.ending = reason
        self._watch.linger(peer, now_ns)
        self.part(peer)

    def part(self, peer: Peer) -> None:
        """See `Keeper.part`."""
        self.update_mask(peer)
        self._dirty.append(peer)

    def want_flush(self, peer: Peer) -> None:
        """See `Owner.want_flush`."""
        self._dirty.append(peer)

    def backlog_changed(self, peer: Peer, nbytes: int) -> None:
        """See `Owner.backlog_changed`."""
        self._watch.backlog_changed(peer, nbytes, self._clock.now_ns(), self._peers.values())
        self.update_mask(peer)

    def update_mask(self, peer: Peer) -> None:
        """Asks for what this connection can use now: no reads from a client that does not read."""
        if peer.finished:
            mask = 0
        elif peer.lingers_until_ns or not peer.is_paused:
            mask = READABLE
            self._reader.resume(peer)
        else:
            mask = 0
        if peer.backlog_nbytes:
            mask |= WRITABLE
        if mask != peer.mask and peer.fd in self._peers:
            peer.mask = mask
            self._poller.modify(peer.fd, mask)

    def _rare_events(self, peer: Peer, mask: int) -> bool:
        """Handles what is not "readable" alone; whether the connection is readable and still to be served."""
        if mask & GONE:
            # HUP and ERR cannot be masked: both directions are gone, nobody will read a reply.
            self.doom(peer, peer.ending or "disconnected")
        elif mask & WRITABLE:
            peer.flush_backlog()
        return bool(mask & READABLE) and not peer.doomed

    def _close_if_done(self, peer: Peer) -> None:
        """The end of a connection: once all it is owed has left, our side is closed, and all of it if both sides are."""
        if peer.session.inflight or peer.backlog_nbytes or peer.doomed:
            return
        if peer.finished:
            self.doom(peer, peer.ending or "done")
        else:
            peer.shut_down()

    def _close(self, peer: Peer) -> None:
        peer.flush_soon()
        self._poller.unregister(peer.fd)
        del self._peers[peer.fd]
        self._reader.ready.pop(peer.fd, None)
        self._turned_away.discard(peer.fd)
        self._watch.forget(peer)
        self._engine.close_session(peer.session)
        peer.session.sink = NOBODY
        self._endings[peer.doomed] += 1
        log.debug("connection_closed", fd=peer.fd, reason=peer.doomed)
        peer.sock.close()

    def close(self) -> None:
        """Closes every connection and forgets every link. Idempotent."""
        self._closed = True
        for peer in list(self._peers.values()):
            self.doom(peer, "server stopped")
        while self._doomed:
            self._close(self._doomed.pop())
        self._stages.clear()
        self._dirty.clear()
        self._poller.close()
