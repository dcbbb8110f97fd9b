"""A connection group: one Trio task that serves many connections in turns.

A task wake-up costs about 25 us, more than a small request in all. So the group is the task, and a connection is
an object in it: the task sleeps until the group's epoll set is readable, then handles every connection that is
ready in one turn, in this order: timers, completions, reads, decisions, flush.

A turn is bounded in frames, bytes and time, all connections together, and each connection within it; what is left
stays readable, or on the list of connections whose bytes are in user space already, and is served in the next turn.
Closing is deferred to the end of the turn: a descriptor number may come back within one list of events.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from trioserve_protocol import (
    READ_NBYTES,
    Connection,
    ErrorCode,
    FatalError,
    FrameError,
    Infer,
    InferBegin,
    InferMany,
    InferRun,
    Role,
    error_frame,
    goaway_frame,
)

from ._body import BodyReader
from ._control import Control
from ._gather import MAX_FRAME_NBYTES, SINGLES_TO_GATHER, Gather
from ._peer import Peer
from ._timerfd import TimerFd
from ._watch import Watch

if TYPE_CHECKING:
    import socket

    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake
    from trioserve.request import Clock
    from trioserve_protocol import Limits

log = structlog.get_logger(__name__)

MAX_EVENTS: Final = 256
SOON_NS: Final = 500_000
SOON_S: Final = 0.001
"""While few requests are under way and their batch is expected back within `SOON_NS`, the group waits for it in its own
epoll set, at most this long: a sleep through the loop and back costs 20 us more. Other tasks wait no longer than
that. Under load it would wake for every single arrival; going through the loop, it finds many."""

_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_GONE: Final = select.EPOLLERR | select.EPOLLHUP


class ConnectionGroup:
    """Connections that one task serves, with the descriptors that must be served in the same breath.

    Args:
        engine: models and sessions.
        intake: takes requests.
        config: limits of connections and turns.
        wire_limits: what the protocol machines accept.
        clock: read once a turn.
        server_id: random number of this server process.

    Ownership: the group closes what `add` gave it, and everything when `run` ends.
    """

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        config: ServerConfig,
        wire_limits: Limits,
        clock: Clock,
        server_id: int,
    ) -> None:
        limits = config.limits
        self._engine: Final = engine
        self._intake: Final = intake
        self._limits: Final = limits
        self._wire_limits: Final = wire_limits
        self._serve_after_fin: Final = config.on_fin == "serve"
        self._clock: Final = clock
        self._control: Final = Control(engine, intake, server_id)
        self._epoll: Final = select.epoll()
        self._timer: Final = TimerFd()
        self._peers: Final[dict[int, Peer]] = {}
        self._stages: Final[dict[int, Callable[[int], None]]] = {}
        self._ready: dict[int, Peer] = {}
        """Connections with unparsed bytes in user space, in order; epoll will not report them again."""
        self._dirty: list[Peer] = []
        self._doomed: list[Peer] = []
        self._buffer: Final = memoryview(
            bytearray(
                limits.connection_turn_nbytes
                + wire_limits.max_meta_nbytes
                + wire_limits.max_control_nbytes
                + 131_072
            )
        )
        self._first_read: Final = self._buffer[: limits.connection_turn_nbytes]
        self._watch: Final = Watch(self, limits)
        self._bodies: Final = BodyReader(intake, self._watch, limits.turn_nbytes)
        self._gathers: Final[dict[tuple[int, int], Gather]] = {}
        self._finishing: dict[int, Peer] = {}
        """Half-closed connections that are still owed something."""
        self._turn_ns: Final = limits.turn_us * 1000
        self._quiet: trio.Event | None = None
        # One budget for frames and bytes: a frame is one unit, and so many bytes of it are another.
        self._turn_units: Final = limits.turn_frames
        self._unit_nbytes: Final = max(1, limits.turn_nbytes // limits.turn_frames)
        self._max_frames: Final = limits.connection_turn_frames
        self._epoll.register(self._timer.fileno(), _IN)

    # ---------------------------------------------------------------- from outside

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._peers)

    def add(self, sock: socket.socket) -> None:
        """Serves a connected, non-blocking socket from the next turn on."""
        machine = Connection(Role.SERVER, self._wire_limits)
        peer = Peer(self, sock, machine)
        peer.session = self._engine.open_session(peer)
        peer.step = self._read_frames
        self._peers[peer.fd] = peer
        peer.mask = _IN
        self._epoll.register(peer.fd, _IN)

    def watch_stage(self, fd: int, collect: Callable[[int], None]) -> None:
        """Calls `collect(now_ns)` in every turn in which a worker's link is readable."""
        self._stages[fd] = collect
        self._epoll.register(fd, _IN)

    def unwatch_stage(self, fd: int) -> None:
        """Forgets a link, before its descriptor is closed."""
        if self._stages.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def goaway(self, message: str) -> None:
        """Tells every client how many of its requests were taken; later ones are never executed."""
        for peer in self._peers.values():
            peer.write_soon(goaway_frame(peer.session.taken, message))
        self.settle()

    def settle(self) -> None:
        """Decides and flushes after something that did not come from the group's own descriptors."""
        self._finish_turn(self._clock.now_ns())

    async def wait_quiet(self) -> None:
        """Returns when every request is answered and every reply has left."""
        self._quiet = trio.Event()
        self.settle()
        await self._quiet.wait()

    @property
    def unsent_nbytes(self) -> int:
        """Reply bytes that wait for slow readers."""
        return self._watch.backlog_nbytes

    # ---------------------------------------------------------------- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled.

        Cancellation: every connection is closed and its requests are cancelled.
        """
        epoll_fd, engine = self._epoll.fileno(), self._engine
        poll, now_ns = self._epoll.poll, self._clock.now_ns
        task_status.started()
        yielded_ns = now_ns()
        try:
            while True:
                events = poll(0, MAX_EVENTS) or (
                    poll(SOON_S, MAX_EVENTS) if engine.is_quiet_until(now_ns() + SOON_NS) else []
                )
                if not events and not self._ready:
                    await trio.lowlevel.wait_readable(epoll_fd)
                    yielded_ns = now_ns()
                    continue
                turn_ns = now_ns()
                if turn_ns - yielded_ns > self._turn_ns:
                    await trio.lowlevel.checkpoint()
                    yielded_ns = turn_ns = now_ns()
                self._turn(events, turn_ns)
        finally:
            self._close_all()

    def _turn(self, events: list[tuple[int, int]], now_ns: int) -> None:
        self._engine.expire(now_ns)
        self._collect(events, now_ns)
        if self._ready:
            ready, self._ready = self._ready, {}
            for peer in ready.values():
                self._guarded(peer, self._parse_kept, now_ns)
        self._read_all(events, now_ns)
        self._finish_turn(now_ns)

    def _collect(self, events: list[tuple[int, int]], now_ns: int) -> None:
        """Takes completions off the workers' links."""
        stages = self._stages
        for fd, _ in events:
            if fd in stages:
                stages[fd](now_ns)

    def _read_all(self, events: list[tuple[int, int]], now_ns: int) -> None:
        """Reads from every connection that is ready, as far as the turn's budget goes; epoll reports the others again,
        and first, because it moves what it has reported to the end of its list.
        """
        peers, clock_ns = self._peers, self._clock.now_ns
        end_ns, units = now_ns + self._turn_ns, self._turn_units
        for index, (fd, mask) in enumerate(events):
            peer = peers.get(fd)
            if peer is None:
                self._own_event(fd, now_ns)
                continue
            if mask != _IN and not self._rare_events(peer, mask):
                continue
            try:
                units -= peer.step(peer, now_ns)
            except Exception as error:
                self._failed(peer, error)
            if units <= 0 or (index & 15 == 15 and clock_ns() > end_ns):
                break
        for gather in self._gathers.values():
            if gather.peers:
                self._admit_gathered(gather, now_ns)

    def _admit_gathered(self, gather: Gather, now_ns: int) -> None:
        """Admits what several connections sent as one run; what is no plain request is parsed as ever."""
        peers, run, others = gather.take()
        if run is not None:
            self._intake.admit_across(gather.lane, [peer.session for peer in peers], run, now_ns)
        for peer, data in others:
            self._guarded(peer, lambda peer, now_ns, data=data: self._parse(peer, data, now_ns), now_ns)

    def _own_event(self, fd: int, now_ns: int) -> None:
        if fd == self._timer.fileno():
            self._timer.acknowledge()
            self._watch.sweep(now_ns)

    def _guarded(self, peer: Peer, step: Callable[[Peer, int], int], now_ns: int) -> None:
        try:
            step(peer, now_ns)
        except Exception as error:
            self._failed(peer, error)

    def _failed(self, peer: Peer, error: Exception) -> None:
        """What goes wrong in one connection closes that connection and no other."""
        if isinstance(error, OSError):
            self.doom(peer, f"receive: {error.strerror}")
            return
        log.error("connection_failed", fd=peer.fd, exc_info=error)
        peer.write_soon(error_frame(0, ErrorCode.INTERNAL))
        self.doom(peer, "a bug of the server")

    def _finish_turn(self, now_ns: int) -> None:
        """Decides, flushes, closes, and sets the timer to whatever is due next."""
        engine = self._engine
        engine.decide(now_ns)
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for peer in dirty:
                peer.flush_soon()
                if peer.lingers_until_ns and not peer.backlog_nbytes:
                    peer.shut_down()
        for peer in list(self._finishing.values()):
            self.close_if_done(peer)
        while self._doomed:
            self._close(self._doomed.pop())
        if self._quiet is not None and not engine.unanswered and not self._watch.backlog_nbytes:
            self._quiet.set()
        self._timer.arm(min(engine.next_event_ns(), self._watch.next_sweep_ns(now_ns)))

    # ---------------------------------------------------------------- reading

    # A connection's `step` is what is done when it is readable: one of the five methods below. They return what they
    # took of the turn's budget.

    def _read_frames(self, peer: Peer, now_ns: int) -> int:
        """Between two frames, none of them large: the usual state."""
        received = peer.recv_into(self._first_read)
        if not received:
            self._end_of_stream(peer)
            return 1
        was_idle = not peer.session.inflight
        units = self._parse(peer, self._buffer[:received], now_ns)
        if was_idle and peer.session.inflight == 1 and peer.step == self._read_frames:
            self._note_single(peer, received)
        else:
            peer.singles = 0
        return units

    def _note_single(self, peer: Peer, received: int) -> None:
        """A read brought one request. Connections that keep doing so are gathered."""
        peer.singles += 1
        if peer.singles < SINGLES_TO_GATHER or received > MAX_FRAME_NBYTES:
            return
        peer.singles = 0
        for handle, lane in peer.session.lanes.items():
            key = id(lane), handle
            if lane.plain_frame_nbytes != received:
                continue
            if key not in self._gathers:
                self._gathers[key] = Gather(lane, handle, MAX_EVENTS)
            peer.gather = self._gathers[key]
            peer.step = self._read_single
            return

    def _read_single(self, peer: Peer, now_ns: int) -> int:
        """From a client that has one request in flight at a time: into the next row of its gather."""
        gather = peer.gather
        if gather is None:
            raise AssertionError("gathering without a gather: this is a bug")
        view = gather.views[len(gather.peers)]
        received = peer.recv_into(view)
        session = peer.session
        if received == gather.stride and not session.inflight and not session.ghosts:
            gather.peers.append(peer)
            return 1
        peer.step = self._read_frames
        if received:
            return self._parse(peer, view[:received], now_ns)
        self._end_of_stream(peer)
        return 1

    def _read_more(self, peer: Peer, now_ns: int) -> int:
        """Inside a frame, or behind a large one: then no more than the next header, so that a body that follows is
        received into its slot and not copied there.
        """
        kept = len(peer.tail)
        self._buffer[:kept] = peer.tail
        limit = min(peer.machine.wanted(kept), self._limits.connection_turn_nbytes)
        received = peer.recv_into(self._buffer[kept : kept + limit])
        if received:
            return self._parse(peer, self._buffer[: kept + received], now_ns)
        self._end_of_stream(peer)
        return 1

    def _read_body(self, peer: Peer, now_ns: int) -> int:
        """Inside a large body that is wanted."""
        received = self._bodies.read(peer, now_ns)
        if peer.finished:
            self._end_of_stream(peer)
        elif peer.arrival is None:
            peer.step = self._read_more
        return 1 + received // self._unit_nbytes

    def _read_nothing(self, peer: Peer, now_ns: int) -> int:
        """After the last frame: what still comes is dropped."""
        del now_ns
        received = peer.recv_into(self._first_read)
        if not received:
            self.doom(peer, "done")
        return 1 + received // self._unit_nbytes

    def _parse_kept(self, peer: Peer, now_ns: int) -> int:
        """Goes on with bytes that were received in an earlier turn."""
        kept = len(peer.tail)
        self._buffer[:kept] = peer.tail
        return self._parse(peer, self._buffer[:kept], now_ns)

    def _parse(self, peer: Peer, data: memoryview, now_ns: int) -> int:
        events, consumed = peer.machine.receive(data, max_frames=self._max_frames)
        units = len(events) + consumed // self._unit_nbytes
        for event in events:
            kind = type(event)
            if kind is Infer:
                self._intake.admit(peer.session, event, now_ns)
            elif kind is InferRun:
                self._intake.admit_run(peer.session, event, now_ns)
                units += event[0]
            elif kind is InferBegin:
                consumed += self._bodies.begin(peer, event, data[consumed:], now_ns)
            else:
                self._rare_event(peer, event, now_ns)
        if peer.midway or consumed != len(data):
            self._stop_midway(peer, data[consumed:], consumed, now_ns)
        return units

    def _stop_midway(self, peer: Peer, left: memoryview, consumed: int, now_ns: int) -> None:
        """Keeps what was received of a frame that is not complete, or not yet looked at, and chooses the next step."""
        peer.tail = bytes(left)
        if not peer.tail:
            self._watch.frame_complete(peer)
        elif peer.machine.more or (consumed and peer.machine.body_remaining and peer.arrival is None):
            self._ready[peer.fd] = peer
        elif consumed or not peer.stalled_since_ns:
            self._watch.frame_begun(peer, now_ns)
        if peer.step == self._read_nothing:
            return
        if peer.arrival is not None:
            peer.step = self._read_body
        elif peer.tail or peer.machine.wanted(0) < READ_NBYTES:
            peer.step = self._read_more
        else:
            peer.step = self._read_frames
        peer.midway = peer.step != self._read_frames

    def _rare_event(self, peer: Peer, event: Any, now_ns: int) -> None:
        if type(event) is InferMany:
            self._intake.admit_many(peer.session, event, now_ns)
        elif type(event) is FrameError:
            self._intake.refuse_frame(
                peer.session, event.rid, event.count, event.code, event.message, event.requests
            )
        elif type(event) is FatalError:
            peer.write_soon(event.reply)
            self._engine.cancel(peer.session)
            peer.step = self._read_nothing
            self._watch.linger(peer, now_ns)
        elif self._control.handle(peer, event):
            self._watch.spend_control(peer, now_ns)
            if peer.step == self._read_single:
                peer.step = self._read_frames  # a handle may mean another model now
        else:
            raise AssertionError(f"no handler for {type(event).__name__}: this is a bug")

    def _end_of_stream(self, peer: Peer) -> None:
        """The client has sent all it will send; what it is owed is still sent."""
        peer.finished = True
        peer.step = self._read_nothing
        peer.tail = b""
        self._watch.frame_complete(peer)
        if peer.arrival is not None:
            self._bodies.drop(peer)
        if not self._serve_after_fin:
            self._engine.cancel(peer.session)
        self.update_mask(peer)
        self._finishing[peer.fd] = peer

    # ---------------------------------------------------------------- the peers' owner

    def doom(self, peer: Peer, reason: str) -> None:
        """See `Owner.doom`."""
        if not peer.doomed:
            peer.doomed = reason
            self._doomed.append(peer)

    def want_flush(self, peer: Peer) -> None:
        """See `Owner.want_flush`."""
        self._dirty.append(peer)

    def backlog_changed(self, peer: Peer, nbytes: int) -> None:
        """See `Owner.backlog_changed`."""
        self._watch.backlog_changed(peer, nbytes, self._clock.now_ns(), self._peers.values())
        self.update_mask(peer)

    def update_mask(self, peer: Peer) -> None:
        """Asks epoll for what this connection can use now: no reads from a client that does not read."""
        deaf = peer.finished and not peer.lingers_until_ns
        mask = 0 if deaf or peer.control_tokens < 0 or peer.backlog_since_ns else _IN
        if peer.backlog_nbytes:
            mask |= _OUT
        if mask != peer.mask and peer.fd in self._peers:
            peer.mask = mask
            self._epoll.modify(peer.fd, mask)

    def _rare_events(self, peer: Peer, mask: int) -> bool:
        """Handles what is not "readable" alone; whether the connection is readable and still to be served."""
        if mask & _GONE:
            # HUP and ERR cannot be masked: both directions are gone, nobody will read a reply.
            self.doom(peer, "disconnected")
        elif mask & _OUT:
            peer.flush_backlog()
        return bool(mask & _IN) and not peer.doomed

    def close_if_done(self, peer: Peer) -> None:
        """Closes a half-closed connection that has got everything it is owed."""
        if not peer.session.inflight and not peer.backlog_nbytes:
            self.doom(peer, "done")

    def _close(self, peer: Peer) -> None:
        peer.flush_soon()
        self._epoll.unregister(peer.fd)
        del self._peers[peer.fd]
        self._ready.pop(peer.fd, None)
        self._finishing.pop(peer.fd, None)
        self._watch.forget(peer)
        self._engine.close_session(peer.session)
        peer.sock.close()

    def _close_all(self) -> None:
        for peer in list(self._peers.values()):
            self._close(peer)
        self._epoll.close()
        self._timer.close()
