"""Open-loop load while something happens: runs of random length, so many requests a second, all in a ledger."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final, cast

import numpy as np
import trio

from trioserve_protocol import (
    Bound,
    ClientEvent,
    Connection,
    Error,
    FatalError,
    GoAway,
    Result,
    ResultRun,
    Role,
    bind_frame,
    infer_flags,
    request_columns,
)

from ._ledger import Ledger, input_rows
from ._until import until

HANDLE: Final = 1
LINKS: Final = 16
TICK_S: Final = 0.004
MAX_RUN: Final = 40
"""Requests of one write, at most."""

DEADLINE_US: Final = 2_000_000
BUFFER_NBYTES: Final = 1 << 18


class Link:
    """One connection of the load.

    Args:
        number: Which.
        sock: Not connected yet.
        ledger: Where replies are entered.
    """

    def __init__(self, number: int, sock: trio.socket.SocketType, ledger: Ledger) -> None:
        self.number: Final = number
        self.sent = 0
        """Requests sent so far."""
        self.taken: int | None = None
        """How many of them the server has taken, once it has said that it takes no more."""
        self.closed: Final = trio.Event()
        self._sock: Final = sock
        self._ledger: Final = ledger
        self._machine: Final = Connection(Role.CLIENT, large_nbytes=BUFFER_NBYTES)

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent."""
        return self.taken is None and not self.closed.is_set()

    async def send(self, count: int) -> None:
        """Sends a run of new requests. Those that the connection does not take any more stay unanswered."""
        rids = self._ledger.issue(count, self.number, self.sent, time.monotonic_ns())
        self.sent += count
        payload = input_rows(rids).view(np.uint8)
        block = request_columns(HANDLE, rids, DEADLINE_US, infer_flags(), payload)
        await self._send_all(memoryview(block.data).cast("B"))

    async def serve(self, port: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Connects, binds the model `double`, and enters replies until the server closes the connection."""
        await self._sock.connect(("127.0.0.1", port))
        self._sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        await self._send_all(memoryview(bind_frame(1, HANDLE, "double")))
        with contextlib.suppress(OSError):
            await self._read_all(task_status)
        self.closed.set()

    async def _send_all(self, data: memoryview) -> None:
        try:
            while data:
                data = data[await self._sock.send(data) :]
        except OSError:
            self.closed.set()

    async def _read_all(self, task_status: trio.TaskStatus[None]) -> None:
        buffer = memoryview(bytearray(BUFFER_NBYTES))
        have = 0
        while received := await self._sock.recv_into(buffer[have:]):
            have += received
            now_ns = time.monotonic_ns()
            events, used = self._machine.receive(buffer[:have])
            for event in events:
                if isinstance(event, Bound):
                    task_status.started()
                else:
                    self._enter(cast("ClientEvent", event), now_ns)
            buffer[: have - used] = bytes(buffer[used:have])
            have -= used

    def _enter(self, event: ClientEvent, now_ns: int) -> None:
        ledger = self._ledger
        if isinstance(event, ResultRun):
            ledger.result(self.number, event.rids, event.payload, now_ns)
        elif isinstance(event, Result):
            payload = np.frombuffer(event.payload, np.uint8).reshape(1, -1)
            ledger.result(self.number, np.array([event.rid], np.uint64), payload, now_ns)
        elif isinstance(event, Error) and event.rid:
            ledger.error(self.number, event.rid, event.count, event.code, now_ns)
        elif isinstance(event, GoAway):
            self.taken = event.taken
        elif isinstance(event, FatalError):
            raise AssertionError(f"the server sent no frame: {event.message}")
        else:
            ledger.wrong += 1


class Traffic:
    """The load.

    Args:
        links: Connections.
        ledger: Where everything is entered.
        rate: Requests a second.
        rng: Draws links and lengths of runs.
    """

    def __init__(self, links: list[Link], ledger: Ledger, rate: float, rng: random.Random) -> None:
        self.links: Final = links
        self.ledger: Final = ledger
        self.stopped = False
        """Set by whoever wants no more requests."""
        self._rate: Final = rate
        self._rng: Final = rng

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sends until `stopped`, until all links are closed, or until the ledger is full."""
        task_status.started()
        started_s, issued = trio.current_time(), 0
        while not self.stopped and self.ledger.room > MAX_RUN:
            due = int((trio.current_time() - started_s) * self._rate) - issued
            while due > 0:
                links = [link for link in self.links if link.is_open]
                if not links:
                    return
                count = min(due, self._rng.randint(1, MAX_RUN))
                await self._rng.choice(links).send(count)
                due -= count
                issued += count
            await trio.sleep(TICK_S)

    async def settle(self, within_s: float) -> None:
        """Sends no more, and returns when everything is answered, all links are closed, or the time is over."""
        self.stopped = True
        await until(
            lambda: not self.ledger.unanswered or all(link.closed.is_set() for link in self.links),
            within_s=within_s,
        )


@asynccontextmanager
async def traffic(port: int, rate: float, rng: random.Random, capacity: int) -> AsyncIterator[Traffic]:
    """Load on a server of this machine from now until the context ends.

    Args:
        port: Of the server.
        rate: Requests a second.
        rng: Draws links and lengths of runs.
        capacity: Most requests there can be.
    """
    ledger = Ledger(capacity)
    with ExitStack() as stack:
        socks = [stack.enter_context(trio.socket.socket()) for _ in range(LINKS)]
        links = [Link(number, sock, ledger) for number, sock in enumerate(socks)]
        load = Traffic(links, ledger, rate, rng)
        async with trio.open_nursery() as nursery:
            for link in links:
                await nursery.start(link.serve, port)
            await nursery.start(load.run)
            yield load
            nursery.cancel_scope.cancel()
