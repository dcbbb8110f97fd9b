"""Scenarios in Trio's virtual time: the engine's loop, its workers and its clients are tasks that sleep.

The loop is a transport's without sockets: it sleeps until the engine wants to be asked or something happens. A worker
sleeps for as long as its model says a batch takes. Run it under `autojump_clock`: an hour takes as long as its events.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from tests.engine.play_client import Client
from tests.engine.play_worker import FakeWorker
from tests.engine.world import MS, ManualClock, World
from trioserve.batching import ServiceModel
from trioserve.engine import NEVER_NS
from trioserve.request import TrioClock
from trioserve_protocol import ErrorCode


class LoopClock(ManualClock):
    """The running loop's own time."""

    def now_ns(self) -> int:
        self.ns = TrioClock().now_ns()
        return self.ns


@dataclass
class Scenario:
    """A world whose time is the loop's."""

    service_s: Callable[[int], float] = lambda rows: 0.004 + 0.0001 * rows
    """Run time of a batch of so many rows."""
    tokenize_s: Callable[[int], float] = lambda rows: 0.0002 * rows
    world: World = field(default_factory=lambda: World(clock=LoopClock()))
    noise: Callable[[], float] = lambda: 1.0
    """What the next run time is multiplied by."""
    checked: bool = True
    """Whether the whole world is checked after every turn."""
    turns: int = 0
    """Times that the loop was awake."""

    def __post_init__(self) -> None:
        self._nudge = trio.Event()
        self._engine_times()

    def _engine_times(self) -> None:
        """What a warm-up would have found."""
        for lane in self.world.engine.lanes:
            sizes = {rows: round(self.service_s(rows) * 1e9) for rows in (1, 2, lane.max_rows)}
            lane.service = ServiceModel(sizes)

    # ------------------------------------------------------------ tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The loop and the workers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work, self.world.executor, self.service_s)
            nursery.start_soon(self._work, self.world.tokenizer, self.tokenize_s)
            task_status.started()
            while True:
                due_ns = self.world.engine.next_event_ns()
                at = math.inf if due_ns == NEVER_NS else self.world.clock.to_trio(due_ns)
                with trio.move_on_at(at):
                    await self._nudge.wait()
                self._nudge = trio.Event()
                self.turns += 1
                self.world.turn()
                if self.checked:
                    self.world.check()

    async def _work(self, worker: FakeWorker, takes_s: Callable[[int], float]) -> None:
        """One worker: finishes its batches one after the other."""
        while True:
            sent = trio.Event()
            worker.link.on_send = sent.set
            if not worker.sent:
                await sent.wait()
            took_s = takes_s(worker.sent[0].rows) * self.noise()
            await trio.sleep(took_s)
            if worker.sent and not worker.link.dead:
                worker.finish(took_ns=round(took_s * 1e9), collect=False)
                self.nudge()

    async def kill_and_restart(self, worker: FakeWorker, after_s: float) -> None:
        """The worker dies now; another one is ready in a while."""
        worker.die()
        self.nudge()
        await trio.sleep(after_s)
        worker.stage.reaped(restarting=True)
        worker.start()
        self.nudge()

    def nudge(self) -> None:
        """Something happened: the loop has a turn."""
        self._nudge.set()

    # ------------------------------------------------------------ clients

    async def ask(self, client: Client, rid: int, timeout_s: float = 1.0) -> ErrorCode:
        """Sends one request and waits for its reply."""
        client.infer(rid, timeout_us=round(timeout_s * 1e6))
        return await self.answer(client, rid)

    async def answer(self, client: Client, rid: int) -> ErrorCode:
        """Waits for the reply to a request that was sent."""
        self.nudge()
        ended = client.ended.setdefault(rid, trio.Event())
        if client.code(rid) is None:
            await ended.wait()
        code = client.code(rid)
        assert code is not None
        return code


def in_ms(seconds: float) -> float:
    """For messages: rounded to microseconds."""
    return round(seconds * 1e9) / MS
