"""A server without sockets, processes and real time: the real group, reader and engine over a network in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from trioserve.backends import signature_of
from trioserve.config import BatchingConfig, ModelConfig, ServerConfig, ServerLimits, TensorConfig
from trioserve.engine import Engine, Executor, Intake, Lane
from trioserve.memory import Slab, plan_slab
from trioserve.request import TrioClock
from trioserve.testing import MemoryClient, MemoryNetwork, MemorySocket, MemoryWorker
from trioserve.transport import ConnectionGroup, Entrance
from trioserve_protocol import Connection, Error, Event, Limits, Result, ResultMany, Role, bind_frame

MS = 1_000_000
OPEN = Entrance()
BIG = 20_000
"""Elements of the large model's rows: 80,000 bytes."""


class PlainArena:
    """The part of an arena that a slab uses, in ordinary memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.view = memoryview(bytearray(nbytes))


def model(name: str, elements: int, *, slots: int, rows: int) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="python",
        file="model.py",
        inputs={"x": TensorConfig("f4", [-1, elements])},
        outputs={"y": TensorConfig("f4", [-1, elements])},
        slots=slots,
        batching=BatchingConfig(max_rows=rows),
    )


def double(inputs: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    return (inputs[0] * 2,)


class VirtualServer:
    """Models `small` (4 elements a row) and `big`, one worker, any number of clients."""

    def __init__(self, limits: ServerLimits, *, service_ns: Callable[[int], int], on_fin: str) -> None:
        config = ServerConfig(limits=limits, on_fin=on_fin)  # type: ignore[arg-type]
        self.clock = TrioClock()
        self.network = MemoryNetwork(self.clock)
        wire_limits = Limits()
        self.engine = Engine(config, wire_limits, self.clock)
        configs = (model("small", 4, slots=512, rows=16), model("big", BIG, slots=8, rows=4))
        self.slabs: list[Slab] = []
        for entry in configs:
            signature = signature_of(entry)
            layout = plan_slab(signature, entry.slots)
            slab = Slab(PlainArena(layout.total_nbytes), layout)  # type: ignore[arg-type]
            self.slabs.append(slab)
            self.engine.add_model(entry, signature, slab)
        self.executor: Executor = self.engine.add_executor(self.engine.lanes)
        self.group = ConnectionGroup(
            self.engine,
            Intake(self.engine),
            config,
            wire_limits,
            clock=self.clock,
            server_id=1,
            poller=self.network,
        )
        self.executor.on_detach = self.group.unwatch_stage
        self.service_ns = service_ns
        self.worker: MemoryWorker
        self.start_worker()

    def start_worker(self) -> None:
        self.worker = MemoryWorker(self.network, self.slabs, infer=double, service_ns=self.service_ns)
        self.executor.attach(self.worker)
        self.group.watch_stage(self.worker.fileno(), self.executor.collect)
        self.group.settle()

    @property
    def small(self) -> Lane:
        return self.engine.lanes[0]

    def connect(
        self,
        *,
        room_nbytes: int = 1 << 62,
        bound: bool = True,
        address: str = "",
        entrance: Entrance = OPEN,
    ) -> VirtualClient:
        sock, end = self.network.connect(room_nbytes=room_nbytes, address=address)
        client = VirtualClient(sock, end)
        self.group.add(sock, entrance)
        if bound:
            end.send(bind_frame(1 << 40, 1, "small") + bind_frame((1 << 40) + 1, 2, "big"))
        return client

    def assert_at_rest(self) -> None:
        """Nothing is held for anybody."""
        for lane in self.engine.lanes:
            assert (lane.slots.leased, lane.gate.rows.taken, lane.queue.rows, lane.announced_rows) == (
                0,
                0,
                0,
                0,
            )
            assert not lane.arrivals
        assert self.engine.byte_permits.taken == 0
        assert self.group.unsent_nbytes == 0
        assert self.engine.unanswered == 0


class VirtualClient:
    """A client that sees frames, and checks that each request ends once."""

    def __init__(self, sock: MemorySocket, end: MemoryClient) -> None:
        self.sock = sock
        self.end = end
        self.events: list[Event] = []
        self._machine = Connection(Role.CLIENT, large_nbytes=1 << 30, vector_from=1 << 30)
        self._data = b""

    def send(self, *frames: bytes) -> None:
        self.end.send(b"".join(frames))

    def read(self, nbytes: int = 1 << 62) -> list[Event]:
        """Takes what has come; the events so far, without the answers to BIND."""
        self._data += self.end.read(nbytes)
        found: list[Event] = []
        while True:
            events, consumed = self._machine.receive(memoryview(self._data))
            found += [
                event._replace(payload=memoryview(bytes(event.payload)))
                if isinstance(event, Result | ResultMany)
                else event
                for event in events
            ]
            self._data = self._data[consumed:]
            if not self._machine.more:
                break
        self.events += [event for event in found if type(event).__name__ != "Bound"]
        return self.events

    def outcomes(self) -> dict[int, Event]:
        """What ended each id, of which there must be one each."""
        self.read()
        ended = [event for event in self.events if isinstance(event, Result | Error) and event.rid]
        assert len({event.rid for event in ended}) == len(ended), "an id that ended twice"
        return {event.rid: event for event in ended}


def values(event: Event) -> list[float]:
    assert isinstance(event, Result), event
    found: list[float] = np.frombuffer(event.payload, np.float32).tolist()
    return found


@asynccontextmanager
async def virtual_server(
    limits: ServerLimits | None = None,
    *,
    service_ns: Callable[[int], int] = lambda rows: MS,
    on_fin: str = "serve",
) -> AsyncIterator[VirtualServer]:
    """Runs a server for the time of the block; the clock must be a mock clock. It starts at 1 s."""
    await trio.sleep_until(1.0)
    server = VirtualServer(limits or ServerLimits(), service_ns=service_ns, on_fin=on_fin)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.group.run)
        yield server
        nursery.cancel_scope.cancel()
    assert server.group.connections == 0
    server.engine.lanes.clear()
