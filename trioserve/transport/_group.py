"""A connection group: one Trio task that serves many connections in turns.

A task wake-up costs about 25 us, more than a small request in all. So the group is the task, and a connection is
an object in it: the task sleeps until the group's epoll set is readable, then handles every connection that is
ready in one turn, in this order: timers, completions, reads, decisions, flush.

A turn is bounded in frames, bytes and time, all connections together, and each connection within it; what is left
stays readable, or on the list of connections whose bytes are in user space already, and is served in the next turn.
Closing is deferred to the end of the turn: a descriptor number may come back within one list of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from trioserve_protocol import goaway_frame

from ._connections import Connections
from ._entrance import OPEN, Entrance
from ._poller import READABLE, EpollPoller, Poller

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trioserve.config import ServerConfig
    from trioserve.engine import Engine, Intake, Lane
    from trioserve.request import Clock
    from trioserve_protocol import Limits

    from ._model_order import ModelOrder
    from ._peer import Socket

MAX_EVENTS: Final = 256
SOON_NS: Final = 500_000
SOON_S: Final = 0.001
"""After a turn with few requests under way, all of them expected back within `SOON_NS`, the group waits for what comes
next in its own epoll set, once and at most this long: a sleep through the loop and back costs 20 us more. Other tasks
wait no longer than that. Under load it would wake for every single arrival; through the loop, it finds many."""

PAUSE_S: Final = 0.000_03
"""While the executors have all they take and requests come one from each of many connections, a turn begins this much
later (twice that, with the kernel's slack) and finds more of them. They could only have been queued, and a turn costs
40 us whatever it finds: 64 clients with one request each cost 15.7 us of processor a request without, 14.8 with it."""


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
        *,
        clock: Clock,
        server_id: int,
        poller: Poller | None = None,
    ) -> None:
        self._engine: Final = engine
        self._clock: Final = clock
        self._poller: Final = poller or EpollPoller()
        self._connections: Final = Connections(
            engine,
            intake,
            config,
            wire_limits,
            clock=clock,
            server_id=server_id,
            poller=self._poller,
            max_peers=MAX_EVENTS,
        )
        self._reader: Final = self._connections.reader
        self._stages: Final[dict[int, Callable[[int], None]]] = {}
        self._served: Final[set[int]] = set()
        """While turns end before everything is read: who had a turn, and stands behind the others in the next one."""
        self._turn_ns: Final = config.limits.turn_us * 1000
        self._turn_units: Final = config.limits.turn_frames
        self._turned: trio.Event | None = None
        self._closed = False

    # ---------------------------------------------------------------- from outside

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections.peers)

    @property
    def unsent_nbytes(self) -> int:
        """Reply bytes that wait for slow readers."""
        return self._connections.watch.backlog_nbytes

    def statistics(self) -> dict[str, Any]:
        """What is counted of connections, as JSON values."""
        return self._connections.statistics()

    def add(self, sock: Socket, entrance: Entrance = OPEN) -> None:
        """Serves a connected, non-blocking socket, which came in by an entrance, from the next turn on.

        One too many is told so, and closed; one that comes after the group's end is closed.

        Raises:
            OSError: the kernel has no room for it; the socket is closed.
        """
        if self._closed:
            sock.close()
        elif not self._connections.add(sock, entrance) or not entrance.is_open:
            self.settle()  # it may say nothing at all, and its time runs

    def watch_stage(self, fd: int, collect: Callable[[int], None]) -> None:
        """Calls `collect(now_ns)` in every turn in which a worker's link is readable."""
        if not self._closed:
            self._stages[fd] = collect
            self._poller.register(fd, READABLE)

    def unwatch_stage(self, fd: int) -> None:
        """Forgets a link, before its descriptor is closed."""
        if self._stages.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def obey_orders(self, obey: Callable[[ModelOrder], None]) -> None:
        """Says who takes orders to load, reload and unload models; nobody does before."""
        self._connections.control.obey = obey

    def forget_models(self, lanes: Collection[Lane]) -> None:
        """Nothing is received for some models any more."""
        self._reader.forget(lanes, self._connections.peers.values())

    def goaway(self, message: str) -> None:
        """Tells every client how many of its requests were taken; later ones are never executed."""
        for peer in self._connections.peers.values():
            if not peer.lingers_until_ns:
                peer.write_soon(goaway_frame(peer.session.taken, message))
        self.settle()

    def hang_up(self) -> None:
        """Closes our side of every connection, behind all that was written.

        Each is gone when its client has closed its own side, or a second later: closing both at once, with unread
        bytes, would make the kernel take back what was written.
        """
        self._connections.dismiss_all("server stopped", self._clock.now_ns())
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
        await self.wait_until(lambda: not self._engine.unanswered and not self.unsent_nbytes)

    async def wait_empty(self) -> None:
        """Returns when no connection is left."""
        await self.wait_until(lambda: not self.connections)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Returns when something is so at the end of a turn, or now."""
        self.settle()
        while not is_so():
            if self._turned is None:
                self._turned = trio.Event()
            await self._turned.wait()

    # ---------------------------------------------------------------- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled.

        Cancellation: every connection is closed and its requests are cancelled.
        """
        engine, reader, served = self._engine, self._reader, self._served
        ready = reader.ready
        poll, now_ns = self._poller.poll, self._clock.now_ns
        task_status.started()
        yielded_ns = now_ns()
        turned = False
        try:
            while True:  # noqa: ASYNC913 - sleeps when idle, and gives way when its time is over
                turn_ns = now_ns()
                if served or ready or turn_ns - yielded_ns > self._turn_ns:
                    # The last turn's budget is spent. Before the poll: others may close and open descriptors meanwhile.
                    await trio.lowlevel.checkpoint()
                    yielded_ns = turn_ns = now_ns()
                if reader.is_gathering and engine.is_full:
                    self._poller.pause(PAUSE_S)
                events = poll(0, MAX_EVENTS)
                if not events and not ready:
                    if turned and engine.is_quiet_until(turn_ns + SOON_NS):
                        events = poll(SOON_S, MAX_EVENTS)
                    turned = False
                    if not events:
                        await self._poller.wait()
                        yielded_ns = now_ns()
                        continue
                self._turn(events, now_ns())
                turned = True
        finally:
            self.close()

    def _turn(self, events: list[tuple[int, int]], now_ns: int) -> None:
        self._engine.expire(now_ns)
        self._collect(events, now_ns)
        units = self._turn_units
        if self._reader.ready:
            units -= self._parse_ready(now_ns)
        self._read_all(events, units, now_ns)
        self._finish_turn(now_ns)

    def _collect(self, events: list[tuple[int, int]], now_ns: int) -> None:
        """Takes completions off the workers' links."""
        stages = self._stages
        if len(events) == MAX_EVENTS:
            # More is ready than was reported: completions do not wait behind thousands of requests.
            for collect in list(stages.values()):
                collect(now_ns)
            return
        for fd, _ in events:
            if fd in stages:
                stages[fd](now_ns)

    def _parse_ready(self, now_ns: int) -> int:
        """Connections whose bytes are here already; half of a turn, so that they cannot keep the others out."""
        ready, reader, clock_ns = self._reader.ready, self._reader, self._clock.now_ns
        units, end_ns = 0, now_ns + self._turn_ns // 2
        for _ in range(len(ready)):
            peer = ready.pop(next(iter(ready)))
            try:
                units += reader.go_on(peer, now_ns)
            except Exception as error:  # noqa: BLE001  one connection's failure
                self._connections.failed(peer, error, now_ns)
            if units >= self._turn_units // 2 or clock_ns() > end_ns:
                break
        return units

    def _read_all(self, events: list[tuple[int, int]], units: int, now_ns: int) -> None:
        """Reads from every connection that is ready, as far as the budget goes; the others are first next time."""
        peers, rare_events = self._connections.peers, self._connections.rare_events
        clock_ns, served = self._clock.now_ns, self._served
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
            if mask != READABLE and not rare_events(peer, mask):
                continue
            try:
                units -= peer.step(peer, now_ns)
            except Exception as error:  # noqa: BLE001  one connection's failure
                self._connections.failed(peer, error, now_ns)
            if units <= 0 or (index & 15 == 15 and clock_ns() > end_ns):
                served.update(fd for fd, _ in events[: index + 1])
                break
        else:
            served.clear()
        for peer, data in self._reader.admit_gathered(now_ns):
            try:
                self._reader.parse(peer, data, now_ns)
            except Exception as error:  # noqa: BLE001  one connection's failure
                self._connections.failed(peer, error, now_ns)

    def _own_event(self, fd: int, now_ns: int) -> None:
        if fd == self._poller.timer_fd:
            self._poller.acknowledge()
            self._connections.watch.sweep(now_ns)

    def _finish_turn(self, now_ns: int) -> None:
        """Decides, flushes, closes, and sets the timer to whatever is due next."""
        self._engine.decide(now_ns)
        self._connections.settle()
        if self._turned is not None:
            self._turned.set()
            self._turned = None
        self._poller.arm(min(self._engine.next_event_ns(), self._connections.watch.next_sweep_ns(now_ns)))

    def close(self) -> None:
        """Closes every connection and forgets every link. Idempotent."""
        self._closed = True
        self._connections.close("server stopped")
        self._stages.clear()
        self._poller.close()
