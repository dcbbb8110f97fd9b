"""Batches: cut in time, never more than the worker takes, learned from."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, US, World
from trioserve.batching import Dispatch, FixedWindow, QueueView, ServiceModel, WaitUntil
from trioserve.engine import NEVER_NS
from trioserve.engine._lessons import REFRESH_NS
from trioserve_protocol import CutReason, ErrorCode

OK = ErrorCode.OK


def test_rows_are_bound_to_a_batch_late(world: World) -> None:
    """While the worker is busy the next batch stays open."""
    client = world.client()
    client.infer(1)
    world.turn()
    for rid in (2, 3, 4):
        client.infer(rid)
        world.turn()
    assert world.executor.ranges() == [[(0, 1)]]
    world.executor.finish()
    world.turn()
    assert world.executor.ranges() == [[(4, 3)]]


def test_as_many_batches_as_the_link_is_deep(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 13))
    world.turn()
    assert world.executor.ranges() == [[(0, 4)], [(4, 4)]]
    world.executor.finish()
    world.turn()
    assert world.executor.ranges() == [[(4, 4)], [(8, 4)]]
    assert world.executor_stage.in_flight == 2


def test_the_next_batch_is_sent_when_the_running_one_is_expected_back(make_world: MakeWorld) -> None:
    """If it is full; else it stays open until that one is back."""
    world = make_world(depth=2)
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 10 * MS, 2: 10 * MS})
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2)
    world.pass_time(20 * MS)
    assert len(world.executor.sent) == 1
    world.settle()
    lane.service = ServiceModel({1: 10 * MS, 2: 10 * MS})
    client.infer(3)
    world.turn()
    client.run(range(4, 8))
    world.turn()
    assert len(world.executor.sent) == 1
    assert world.engine.next_event_ns() == world.clock.ns + 10 * MS
    world.pass_time(10 * MS)
    assert len(world.executor.sent) == 2
    assert world.executor_stage.free_ns == world.clock.ns + 10 * MS


def test_a_block_that_fills_up_behind_a_cut_stays_open(world: World) -> None:
    """So that in arrival order every batch is one range."""
    client = world.client()
    client.run(range(1, 7))
    world.turn()
    client.run(range(11, 18))
    world.settle()
    assert [batch.ranges for batch in world.executor.batches] == [
        ((0, 4),), ((4, 4),), ((8, 4),), ((12, 1),)
    ]  # fmt: skip


def test_models_of_one_worker_are_served_by_who_waits_longer(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2, "narrow")
    world.clock.ns += 1
    client.infer(3)
    world.executor.finish()
    world.turn()
    assert world.executor.sent[0].model == 1
    world.executor.finish()
    world.turn()
    assert world.executor.sent[0].model == 0


@pytest.mark.parametrize(("window_us", "first"), [(1_900, 1), (5_000, 0)])
def test_a_more_urgent_model_that_waits_for_a_moment_is_waited_for(
    world: World, window_us: int, first: int
) -> None:
    """It has time for the other's batch, but not so little to wait for that the worker should be busy then."""
    world.lane("narrow").scheduler.use(FixedWindow(window_us * US))
    client = world.client()
    client.infer(1, "narrow", timeout_us=300_000)
    client.run(range(2, 6), timeouts_us=400_000)
    world.turn()
    assert len(world.executor.sent) == (first == 0)
    assert world.engine.next_event_ns() == world.clock.ns + window_us * US or first == 0
    world.pass_time(window_us * US)
    assert world.executor.sent[0].model == first
    world.settle()


def test_one_wait_after_the_other_ends_in_the_end(world: World) -> None:
    """A batch is put off by 2 ms in all."""

    class Patient:
        def decide(self, view: QueueView, now_ns: int) -> WaitUntil:
            return WaitUntil(now_ns + MS)

    world.lane("narrow").scheduler.use(Patient())
    client = world.client()
    client.infer(1, "narrow", timeout_us=300_000)
    client.run(range(2, 6), timeouts_us=400_000)
    world.turn()
    began_ns = world.clock.ns
    while not world.executor.sent:
        world.pass_time(MS)
    assert (world.executor.sent[0].model, world.clock.ns) == (0, began_ns + 2 * MS)
    world.lane("narrow").scheduler.use(FixedWindow(0))
    world.settle()


def test_a_less_urgent_model_that_waits_is_not_waited_for(world: World) -> None:
    world.lane("narrow").scheduler.use(FixedWindow(MS))
    client = world.client()
    client.infer(1, "narrow", timeout_us=500_000)
    client.run(range(2, 6), timeouts_us=400_000)
    world.turn()
    assert [batch.model for batch in world.executor.sent] == [0]
    world.settle()


def test_a_wake_up_is_not_asked_for_while_the_worker_is_full(make_world: MakeWorld) -> None:
    """Else the loop would spin until a batch comes back."""
    world = make_world(depth=2)
    wide, narrow = world.lane("wide"), world.lane("narrow")
    narrow.scheduler.use(FixedWindow(5 * MS))
    client = world.client()
    client.infer(1, "narrow")
    world.turn()
    assert narrow.wake_ns == world.clock.ns + 5 * MS
    client.run(range(10, 18))
    world.turn()
    assert len(world.executor.sent) == 2
    world.pass_time(10 * MS)
    assert (wide.wake_ns, narrow.wake_ns) == (NEVER_NS, NEVER_NS)


def test_no_wake_up_is_asked_for_without_a_worker(world: World) -> None:
    lane = world.lane("wide")
    lane.scheduler.use(FixedWindow(5 * MS))
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.die()
    world.turn()
    assert lane.wake_ns == NEVER_NS
    world.pass_time(10 * MS)


def test_every_cut_is_counted_by_its_reason(world: World) -> None:
    world.lane("wide").service = ServiceModel({1: MS})
    client = world.client()
    client.run(range(1, 10))
    world.settle()
    stats = world.lane("wide").stats.snapshot()
    assert stats["cut_reasons"]["full"] == 2
    assert stats["cut_reasons"]["no_gain"] == 1
    assert stats["batch_sizes"] == {"1": 1, "4": 2}
    assert (stats["batches"], stats["rows"]) == (3, 9)


def test_the_service_time_is_learned(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.finish(took_ns=6 * MS)
    assert lane.service.mean_ns(1) == 6 * MS
    client.infer(2)
    world.turn()
    world.clock.ns += REFRESH_NS
    world.executor.finish(took_ns=12 * MS)
    assert 6 * MS < lane.service.mean_ns(1) < 7 * MS


def test_a_failed_batch_teaches_nothing(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.finish(took_ns=6 * MS, code=int(ErrorCode.MODEL_RAISED), message="boom")
    assert lane.service.mean_ns(1) == 0
    assert (client.code(1), client.replies[1].message) == (ErrorCode.MODEL_RAISED, "boom")


def test_a_code_of_the_worker_that_nobody_knows_is_internal(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.finish(code=0x33_FF)
    assert client.code(1) == ErrorCode.INTERNAL


def test_a_policy_that_takes_less_than_a_request_gets_the_request(world: World) -> None:
    class OneRow:
        def decide(self, view: QueueView, now_ns: int) -> Dispatch:
            return Dispatch(1, CutReason.NO_GAIN)

    world.lane("wide").scheduler.use(OneRow())
    client = world.client()
    client.infer(1, rows=3)
    client.infer(2)
    world.turn()
    assert world.executor.ranges() == [[(0, 3)]]
    world.settle()
    assert client.codes() == [OK, OK]


# ---------------------------------------------------------------- deadlines


def test_what_expires_in_the_queue_does_not_run(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2, timeout_us=500)
    client.infer(3)
    world.pass_time(MS)
    assert client.codes() == [None, ErrorCode.DEADLINE_IN_QUEUE, None]
    world.settle()
    assert [batch.ranges for batch in world.executor.batches] == [((0, 1),), ((5, 1),)]


def test_nothing_starts_at_or_after_its_deadline(world: World) -> None:
    """Also when nobody has called `expire`: a decision makes sure itself."""
    client = world.client()
    for rid, timeout_us in [(1, 999), (2, 1000), (3, 1001)]:
        client.infer(rid, timeout_us=timeout_us)
    world.clock.ns += MS
    world.engine.decide(world.clock.ns)
    assert client.codes() == [ErrorCode.DEADLINE_IN_QUEUE] * 2 + [None]
    assert world.executor.ranges() == [[(2, 1)]]
    world.executor.finish()


@pytest.mark.parametrize(("late_ns", "code"), [(-1, OK), (0, ErrorCode.DEADLINE_AFTER_EXECUTION)])
def test_a_result_at_the_deadline_is_late(world: World, late_ns: int, code: ErrorCode) -> None:
    """Also when the timer has not fired yet."""
    client = world.client()
    client.infer(1, timeout_us=1000)
    world.turn()
    world.clock.ns += MS + late_ns
    world.executor.finish()
    assert client.code(1) == code


def test_a_request_expires_inside_a_running_batch(world: World) -> None:
    client = world.client()
    client.infer(1, timeout_us=20_000)
    client.infer(2)
    world.turn()
    world.pass_time(20 * MS)
    assert client.codes() == [ErrorCode.DEADLINE_AFTER_EXECUTION, None]
    world.check()
    world.pass_time(500 * MS)
    world.executor.finish()
    assert client.code(2) == OK


def test_the_engine_asks_for_the_next_deadline(world: World) -> None:
    client = world.client()
    begun_ns = world.clock.ns
    client.infer(1, timeout_us=3000)
    client.infer(2, timeout_us=2000)
    client.infer(3, timeout_us=4000, rows=2)
    assert world.engine.next_event_ns() == begun_ns + 2 * MS
    world.pass_time(2 * MS)
    assert world.engine.next_event_ns() == begun_ns + 3 * MS
    world.pass_time(2 * MS)
    assert world.engine.next_event_ns() == world.executor_stage.watchdog.look_ns, (
        "the batch is still under way"
    )
    world.executor.finish()
    world.pass_time(1_000 * MS)
    assert world.engine.next_event_ns() == NEVER_NS


def test_is_quiet_without_requests_and_until_a_batch_is_due(world: World) -> None:
    world.lane("wide").service = ServiceModel({1: MS, 2: MS})
    engine, client = world.engine, world.client()
    assert engine.is_quiet_until(0)
    client.infer(1)
    world.turn()
    due_ns = world.clock.ns + MS
    assert engine.is_quiet_until(due_ns)
    assert not engine.is_quiet_until(due_ns - US)
    client.run(range(2, 10))
    assert not engine.is_quiet_until(due_ns)


def test_gathering_is_counted_where_the_worker_does_it(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide")])
    client = world.client()
    client.infer(1)
    world.turn()
    for rid in range(2, 5):
        client.infer(rid)
    client.cancel(3)
    world.executor.finish()
    world.turn()
    assert world.executor.ranges() == [[(4, 1), (6, 1)]]
