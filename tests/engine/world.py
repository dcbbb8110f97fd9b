"""An engine without sockets and processes: time, workers and clients are played by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.engine.play_client import Client
from tests.engine.play_models import Array, fixed_config, text_config
from tests.engine.play_worker import FakeWorker
from trioserve.backends import signature_of
from trioserve.config import ModelConfig, ServerConfig, ServerLimits
from trioserve.engine import Engine, Intake, Lane, TextLane, text_region_nbytes
from trioserve.execution import StageBatch
from trioserve.memory import Slab, plan_slab
from trioserve_protocol import DEFAULT_LIMITS

US = 1_000
MS = 1_000_000
START_NS = 1_000_000_000


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.ns = START_NS

    def now_ns(self) -> int:
        return self.ns

    def to_trio(self, at_ns: int) -> float:
        return at_ns / 1e9


class PlainArena:
    """The part of an arena that a slab uses, in ordinary memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.view = memoryview(bytearray(nbytes))


@dataclass
class World:
    """An engine with its models, workers and clients."""

    configs: Sequence[ModelConfig] = field(
        default_factory=lambda: (fixed_config("wide"), fixed_config("narrow", slots=8), text_config())
    )
    limits: ServerLimits = field(default_factory=ServerLimits)
    config: ServerConfig | None = None
    """Instead of `limits`."""
    depth: int = 1
    ready: bool = True
    """Whether the workers are there from the start."""
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.engine = Engine(self.config or ServerConfig(limits=self.limits), DEFAULT_LIMITS, self.clock)
        self.intake = Intake(self.engine)
        self.clients: list[Client] = []
        for config in self.configs:
            self._add_model(config)
        self.executor_stage = self.engine.add_executor(self.engine.lanes)
        texts = [lane for lane in self.engine.lanes if isinstance(lane, TextLane)]
        self.tokenizer_stage = self.engine.add_tokenizer(texts)
        if self.ready:
            self.start_workers()

    def start_workers(self) -> None:
        clock, check = self.clock, self.check_batch
        self.executor = FakeWorker(self.executor_stage, clock, fd=11, depth=self.depth, check=check)
        self.tokenizer = FakeWorker(self.tokenizer_stage, clock, fd=12, depth=2, check=check)

    def _add_model(self, config: ModelConfig) -> None:
        signature = signature_of(config)
        tokenizer = config.tokenizer
        layout = plan_slab(
            signature,
            config.slots,
            max_tokens=tokenizer.max_tokens if tokenizer else 0,
            text_nbytes=text_region_nbytes(config)[0] if tokenizer else 0,
        )
        slab = Slab(PlainArena(layout.total_nbytes), layout)  # type: ignore[arg-type]
        lane = self.engine.add_model(config, signature, slab)
        lane.scheduler.rule._random = lambda: 0.5  # type: ignore[misc]  # the same replies every time
        self.engine._scatter = lambda count: np.full(count, 0.5)  # type: ignore[misc,assignment]
        slab.poison(0, config.slots)
        lane.slots.on_block_free = slab.poison

    def lane(self, name: str) -> Lane:
        return self.engine.find(name)

    @property
    def text(self) -> TextLane:
        lane = self.lane("text")
        assert isinstance(lane, TextLane)
        return lane

    def client(self, *names: str, vector_from: int = 4) -> Client:
        client = Client(self, vector_from=vector_from)
        client.bind(*(names or [config.name for config in self.configs]))
        self.clients.append(client)
        return client

    # ------------------------------------------------------------ time

    def turn(self) -> None:
        """One turn of a transport, without requests."""
        now_ns = self.clock.now_ns()
        self.engine.expire(now_ns)
        for worker in (self.executor, self.tokenizer):
            if worker.stage.link is worker.link and (worker.link.done or worker.link.dead):
                worker.stage.collect(now_ns)
        self.engine.decide(now_ns)

    def pass_time(self, ns: int) -> None:
        """Lets time pass; the engine has its turn whenever it asked for one, and at the end."""
        until_ns = self.clock.ns + ns
        for _ in range(1_000):
            due_ns = self.engine.next_event_ns()
            if due_ns > until_ns:
                break
            self.clock.ns = max(self.clock.ns, due_ns)
            self.turn()
            assert self.engine.next_event_ns() > self.clock.ns, (
                "the engine asks to be woken at once, again and again"
            )
        else:
            raise AssertionError("too many wake-ups")
        self.clock.ns = until_ns
        self.turn()

    def settle(self, step_ns: int = MS) -> None:
        """Lets the workers finish everything."""
        self.turn()
        for _ in range(1_000):
            working = [worker for worker in (self.tokenizer, self.executor) if not worker.link.dead]
            for worker in working:
                while worker.sent:
                    worker.finish()
            self.clock.ns += step_ns
            self.turn()
            waiting = any(lane.queue.rows for lane in self.engine.lanes)
            if not waiting and not any(worker.sent for worker in working):
                return
        raise AssertionError("the workers are never done")

    def end(self) -> None:
        """Lets everything end, whatever state the test left it in, and checks that nothing is left."""
        if not self.ready:
            self.start_workers()
        for worker in (self.executor, self.tokenizer):
            if worker.stage.link is None or worker.link.dead:
                worker.stage.reaped(restarting=False)
        self.settle()
        self.check_rest()

    # ------------------------------------------------------------ what must always be true

    def check_batch(self, lane: Lane, batch: StageBatch, slots: Array) -> None:
        """A worker's rows are its own until it is done with them."""
        held = lane.slots.holds[slots] & 2
        assert held.all(), "a worker has rows that nobody holds for it"
        assert len(set(slots.tolist())) == len(slots)
        for first, count in batch.ranges:
            assert first // lane.max_rows == (first + count - 1) // lane.max_rows

    def check(self) -> None:
        """The accounts of every model and session."""
        check_accounts(self)

    def check_rest(self) -> None:
        """Nothing is left of what was served."""
        self.check()
        for client in self.clients:
            if not client.gone:
                assert not client.waiting, f"never answered: {client.waiting}"
                session = client.session
                assert (session.inflight, session.inflight_nbytes, session.ghosts) == (0, 0, 0)
        engine = self.engine
        assert engine.byte_permits.taken == 0
        for lane in engine.lanes:
            slots = lane.slots
            assert slots.leased == 0
            assert slots.free_blocks == slots.total // slots.block_rows
            assert (lane.gate.rows.taken, lane.queue.rows, lane.announced_rows) == (0, 0, 0)
            assert not lane.arrivals
            assert not lane.under_way
            if isinstance(lane, TextLane):
                assert lane.texts.taken == 0
                assert not lane.untokenized
        open_sessions = sum(not session.closed for session in engine.sessions.by_index)
        assert len(engine.sessions._free) == len(engine.sessions.by_index) - open_sessions


def check_accounts(world: World) -> None:
    """What the engine counts agrees with what the slots say."""
    engine = world.engine
    inflight: dict[int, int] = {}
    ghosts: dict[int, int] = {}
    nbytes: dict[int, int] = {}
    total_nbytes = 0
    for lane in engine.lanes:
        slots = lane.slots
        held = np.flatnonzero((slots.holds > 0) & (slots.row_counts > 0)).tolist()
        rows = sum(slots.rows[slot] for slot in held)
        assert rows == slots.leased == int(np.count_nonzero(slots.holds)) == lane.gate.rows.taken
        for slot in held:
            account = inflight if slots.is_live(slot) else ghosts
            account[slots.session[slot]] = account.get(slots.session[slot], 0) + 1
            nbytes[slots.session[slot]] = nbytes.get(slots.session[slot], 0) + slots.body_nbytes[slot]
            total_nbytes += slots.body_nbytes[slot]
        _check_lane(lane)
    assert engine.byte_permits.taken == total_nbytes
    for executor in engine.executors:
        assert executor.occupancy.in_flight == [executor.in_flight]
    for session in engine.sessions.by_index:
        assert session.inflight == inflight.pop(session.index, 0)
        assert session.ghosts == ghosts.pop(session.index, 0)
        assert session.inflight_nbytes == nbytes.pop(session.index, 0)
    assert not inflight
    assert not ghosts


def _check_lane(lane: Lane) -> None:
    slots, stats = lane.slots, lane.stats
    free = slots.holds == 0
    assert (slots.row_counts[free] == 1).all()
    assert not slots.flag_column[free].any()
    live = len(slots.live_requests())
    ended = stats.ok + stats.refused + stats.expired + stats.cancelled + stats.failed
    assert stats.received == ended + live, "the sum rule of the counters"
    assert sum(stats.errors.values()) == ended - stats.ok
    queued = [slot for first, count in _queued(lane) for slot in range(first, first + count)]
    assert len(queued) == len(set(queued)) == lane.queue.rows
    assert (slots.holds[queued] == 1).all(), "a dead row waits, or one that a worker has"
    assert (slots.deadlines_ns[slots.live_requests()] >= lane.next_deadline_ns).all()


def _queued(lane: Lane) -> list[tuple[int, int]]:
    if not isinstance(lane, TextLane):
        return lane.queue.peek(10**6, lane.slots.row_counts) if lane.queue.rows else []
    buckets = lane.queue._buckets
    untokenized = list(lane.untokenized)
    assert (lane.slots.holds[untokenized] == 1).all()
    return [(waiting.first, waiting.rows) for bucket in buckets for waiting in bucket]
