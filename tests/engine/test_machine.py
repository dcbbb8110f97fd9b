"""Random programs of everything that can happen to an engine: whatever the order, every account adds up.

After each step the slots, permits, credits, counters and queues agree with each other (`World.check`), and every reply
is the one terminal frame of a request, with that request's result (`Account`). At the end nothing is left.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.play_client import Body
from tests.engine.play_worker import FakeWorker
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.config import QuotaConfig, ServerConfig, ServerLimits
from trioserve_protocol import ErrorCode, Flag

OWNERS = st.integers(0, 2)
MODELS = st.sampled_from(["wide", "wide", "narrow"])
TIMEOUTS_US = st.sampled_from([0, 0, 0, 1, 500, 1000, 5000])
CLASSES = st.sampled_from([0, 0, 0, 1, 2, 3])
FLAGS = st.builds(
    int.__or__,
    CLASSES,
    st.sampled_from([0, 0, 0, int(Flag.SAMPLED), int(Flag.NOREPLY), int(Flag.SAMPLED | Flag.NOREPLY)]),
)
STAGES = st.sampled_from(["executor", "tokenizer"])
CODES = [int(code) for code in (ErrorCode.MODEL_RAISED, ErrorCode.INVALID_BYTES, ErrorCode.INTERNAL)]


class EngineMachine(RuleBasedStateMachine):
    """Three clients, two models of fixed shape, one of text, two workers that may die."""

    @initialize(
        depth=st.sampled_from([1, 2]),
        window=st.sampled_from([5, 256]),
        queued_nbytes=st.sampled_from([400, 1 << 30]),
        per_s=st.sampled_from([0.0, 1000.0]),
        service_ns=st.sampled_from([0, 2 * MS]),
    )
    def build(self, depth: int, window: int, queued_nbytes: int, per_s: float, service_ns: int) -> None:
        limits = ServerLimits(credit_requests=window, max_queued_nbytes=queued_nbytes)
        config = ServerConfig(limits=limits, quota=QuotaConfig(per_s, 20), tenants={"free": QuotaConfig()})
        self.world = World(depth=depth, config=config)
        for lane in self.world.engine.lanes:
            lane.service = ServiceModel({1: service_ns} if service_ns else {})
        self.clients = [self.world.client() for _ in range(3)]
        self.rids = [0, 0, 0]
        self.bodies: list[Body | None] = [None, None, None]

    def fresh(self, owner: int, count: int = 1) -> int:
        """The first of `count` ids that the client has not used yet."""
        rid = self.rids[owner] + 1
        self.rids[owner] += count
        return rid

    # ------------------------------------------------------------ requests

    @rule(owner=OWNERS, model=MODELS, rows=st.integers(1, 5), timeout_us=TIMEOUTS_US, flags=FLAGS)
    def infer(self, owner: int, model: str, rows: int, timeout_us: int, flags: int) -> None:
        self.clients[owner].infer(self.fresh(owner), model, rows=rows, timeout_us=timeout_us, flags=flags)

    @rule(owner=OWNERS, model=MODELS, back=st.integers(0, 12), rows=st.integers(1, 2))
    def infer_with_an_old_id(self, owner: int, model: str, back: int, rows: int) -> None:
        self.clients[owner].infer(max(1, self.rids[owner] - back), model, rows=rows)

    @rule(
        owner=OWNERS,
        model=MODELS,
        timeouts_us=st.lists(TIMEOUTS_US, min_size=4, max_size=9),
        klass=CLASSES,
        alike=st.booleans(),
    )
    def run(self, owner: int, model: str, timeouts_us: list[int], klass: int, *, alike: bool) -> None:
        count = len(timeouts_us)
        first = self.fresh(owner, count)
        times = timeouts_us[0] if alike else timeouts_us
        self.clients[owner].run(range(first, first + count), model, timeouts_us=times, flags=klass)

    @rule(owner=OWNERS, name=st.sampled_from(["acme", "free"]))
    def name_tenant(self, owner: int, name: str) -> None:
        self.world.engine.name_tenant(self.clients[owner].session, name)

    @rule(
        owner=OWNERS,
        model=MODELS,
        count=st.integers(1, 9),
        back=st.sampled_from([0, 0, 2]),
        timeout_us=TIMEOUTS_US,
        flags=FLAGS,
    )
    def many(self, owner: int, model: str, count: int, back: int, timeout_us: int, flags: int) -> None:
        first = max(1, self.fresh(owner, count) - back)
        self.clients[owner].many(first, count, model, timeout_us=timeout_us, flags=flags)

    @rule(
        owner=OWNERS,
        tokens=st.lists(st.sampled_from([1, 8, 9, 32]), min_size=1, max_size=5),
        many=st.booleans(),
        timeout_us=TIMEOUTS_US,
        flags=FLAGS,
    )
    def texts(self, owner: int, tokens: list[int], *, many: bool, timeout_us: int, flags: int) -> None:
        rid = self.fresh(owner, len(tokens))
        self.clients[owner].texts(rid, tokens, many=many, timeout_us=timeout_us, flags=flags)

    # ------------------------------------------------------------ large bodies

    @rule(
        owner=OWNERS,
        rows=st.integers(1, 6),
        many=st.booleans(),
        text=st.booleans(),
        timeout_us=TIMEOUTS_US,
        wrong_crc=st.sampled_from([None, None, 1]),
    )
    def begin(
        self, owner: int, rows: int, *, many: bool, text: bool, timeout_us: int, wrong_crc: int | None
    ) -> None:
        client, body = self.clients[owner], self.bodies[owner]
        if body is not None and body.is_open:
            return
        rid = self.fresh(owner, rows)
        payload = client.text_body(rid, [5] * rows, many=many) if text else None
        self.bodies[owner] = client.begin(
            rid,
            rows=rows,
            many=many,
            model="text" if text else "wide",
            payload=payload,
            timeout_us=timeout_us,
            crc=wrong_crc,
        )

    @rule(owner=OWNERS, nbytes=st.sampled_from([1, 20, 10**6, 10**6]))
    def send_body(self, owner: int, nbytes: int) -> None:
        body = self.bodies[owner]
        if body is not None and body.is_open:
            body.send(nbytes)

    # ------------------------------------------------------------ early ends

    @rule(owner=OWNERS, back=st.integers(0, 12), count=st.integers(1, 5))
    def cancel(self, owner: int, back: int, count: int) -> None:
        self.clients[owner].cancel(max(1, self.rids[owner] - back), count)

    @rule(owner=OWNERS)
    def cancel_all(self, owner: int) -> None:
        self.clients[owner].cancel()
        assert not self.clients[owner].waiting

    @rule(owner=OWNERS)
    def reconnect(self, owner: int) -> None:
        self.clients[owner].close()
        self.clients[owner] = self.world.client()
        self.rids[owner], self.bodies[owner] = 0, None

    @rule(ns=st.sampled_from([0, 1, MS // 2, MS, 3 * MS]))
    def pass_time(self, ns: int) -> None:
        self.world.pass_time(ns)
        now_ns = self.world.clock.ns
        for lane in self.world.engine.lanes:
            live = lane.slots.live_requests()
            assert (lane.slots.deadlines_ns[live] > now_ns).all(), "a request outlived its deadline"

    # ------------------------------------------------------------ workers

    @rule()
    def turn(self) -> None:
        self.world.turn()

    def worker(self, stage: str) -> FakeWorker:
        return self.world.executor if stage == "executor" else self.world.tokenizer

    @rule(stage=STAGES, collect=st.booleans())
    def finish(self, stage: str, *, collect: bool) -> None:
        worker = self.worker(stage)
        if worker.sent and not worker.link.dead:
            worker.finish(collect=collect)

    @rule(stage=STAGES, code=st.sampled_from(CODES), rows=st.sets(st.integers(0, 3)))
    def finish_badly(self, stage: str, code: int, rows: set[int]) -> None:
        """Some rows fail, or, if none is named, all."""
        worker = self.worker(stage)
        if worker.sent and not worker.link.dead:
            there = sorted(row for row in rows if row < worker.sent[0].rows)
            worker.finish(code=0 if there else code, failures=[(row, code, "bad") for row in there])

    @rule(stage=STAGES)
    def kill(self, stage: str) -> None:
        self.worker(stage).die()

    @precondition(lambda self: self.world.executor.link.dead or self.world.tokenizer.link.dead)
    @rule()
    def revive(self) -> None:
        for worker in (self.world.executor, self.world.tokenizer):
            if worker.link.dead:
                worker.stage.reaped(restarting=True)
                worker.start()

    # ------------------------------------------------------------ always

    @invariant()
    def adds_up(self) -> None:
        self.world.check()

    @invariant()
    def waits_for_nothing_in_vain(self) -> None:
        """What a client still waits for is in a slot."""
        for client in self.clients:
            live = sum(
                len(lane.slots.live_requests(client.session.index)) for lane in self.world.engine.lanes
            )
            assert len(client.waiting) == live == client.session.inflight

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for body in self.bodies:
            if body is not None and body.is_open:
                body.send()
        self.world.end()


class DrainMachine(EngineMachine):
    """The same with a server that stops somewhere in the middle."""

    @rule()
    def drain(self) -> None:
        self.world.engine.drain()

    @precondition(lambda self: self.world.engine.draining)
    @rule()
    def abort(self) -> None:
        self.world.engine.abort()
        assert self.world.engine.unanswered == 0

    @invariant()
    def takes_nothing_more(self) -> None:
        if self.world.engine.draining:
            assert all(lane.closed_code for lane in self.world.engine.lanes)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "examples"), [(EngineMachine, 120), (DrainMachine, 40)])
def test_random_programs(machine: type[EngineMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
