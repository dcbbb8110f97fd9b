"""Workers that die: what they had is answered at once, their slots come back when they are reaped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
LOST = ErrorCode.WORKER_LOST
CLOSED = ErrorCode.UNAVAILABLE
SECOND = 1_000 * MS


def state_of(world: World) -> str:
    return world.executor_stage.health.state


def test_what_a_dead_worker_had_is_answered_and_held(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, rows=2)
    world.turn()
    client.infer(3)
    world.executor.die()
    world.turn()
    assert client.codes() == [LOST, LOST, None]
    assert client.replies[1].frame.retryable
    assert world.lane("wide").slots.leased == 4
    assert client.session.ghosts == 2
    world.check()
    world.executor_stage.reaped(restarting=True)
    assert world.lane("wide").slots.leased == 1
    assert client.session.ghosts == 0
    world.executor.start()
    world.settle()
    assert client.code(3) == OK
    assert world.executor_stage.starts == 2


def test_what_a_worker_finished_before_it_died_counts(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    world.executor.finish(collect=False)
    world.executor.die()
    world.turn()
    assert client.codes() == [OK] * 4 + [LOST] * 4


def test_a_death_is_noticed_by_sending(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, timeout_us=50_000)
    world.executor.die()
    world.engine.decide(world.clock.ns)
    assert client.codes() == [None, LOST], "only one can wait for the next worker"
    assert world.executor_stage.link is None
    world.check()
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    world.settle()
    assert client.code(1) == OK
    world.check_rest()


def test_what_a_worker_had_not_begun_is_run_by_the_next_one(make_world: MakeWorld) -> None:
    world = make_world(depth=3)
    client = world.client()
    client.run(range(1, 5))
    client.infer(5, rows=2)
    client.infer(6, rows=2)
    client.infer(7, timeout_us=50_000)
    client.infer(8)
    client.infer(9)
    world.turn()
    assert len(world.executor.sent) == 3
    ran, *_ = world.executor.ranges()
    client.cancel(9)
    world.executor.die()
    world.executor_stage.collect(world.clock.ns)
    ghosts = client.session.ghosts
    codes = client.codes()
    assert codes.count(LOST) == ghosts + (7 not in rids_of(world, ran))
    assert codes.count(None) > 0
    assert client.code(9) == ErrorCode.CANCELLED_BY_CLIENT
    world.check()
    world.executor_stage.reaped(restarting=True)
    assert client.session.ghosts == 0
    world.executor.start()
    world.settle()
    assert [after for before, after in zip(codes, client.codes(), strict=True) if before is None] == [
        OK
    ] * codes.count(None)
    world.check_rest()


def rids_of(world: World, ranges: list[tuple[int, int]]) -> set[int]:
    """Ids of the requests in some ranges of the first model."""
    slots = world.lane("wide").slots
    return {slots.rid[slot] for first, count in ranges for slot in range(first, first + count)}


def test_what_may_have_run_is_not_run_again(make_world: MakeWorld) -> None:
    """A worker that sent what nobody can read, or that lives, may have begun any of its batches."""
    for is_sound, is_over in ((False, True), (True, False)):
        world = make_world(depth=2)
        client = world.client()
        client.run(range(1, 9))
        world.turn()
        world.executor.link.is_sound = is_sound
        world.executor.die()
        world.executor_stage.lose("gone", is_over=is_over)
        assert client.codes() == [LOST] * 8
        assert world.lane("wide").slots.leased == 8
        world.executor_stage.reaped(restarting=True)
        assert world.lane("wide").slots.leased == 0


def test_the_next_of_kin_of_what_killed_a_worker_is_not_suspected(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    world.executor.die()
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    assert world.lane("wide").door.quarantine.snapshot()["suspects"] == 4
    world.turn()
    assert [batch.rows for batch in world.executor.sent] == [4]
    world.settle()
    assert client.codes() == [LOST] * 4 + [OK] * 4


def test_without_another_worker_what_was_not_begun_is_answered_too(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    world.executor.die()
    world.executor_stage.reaped(restarting=False)
    assert client.codes() == [LOST] * 4 + [CLOSED] * 4
    world.check_rest()


def test_those_who_lost_their_worker_come_back_when_there_is_another_one(world: World) -> None:
    """The last start took two seconds."""
    world.executor.die()
    world.executor_stage.reaped(restarting=True)
    world.pass_time(2_000 * MS)
    world.executor.start()
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 4 * MS, 4: 8 * MS}, {1: MS, 4: MS})
    client = world.client()
    client.run(range(1, 5))
    world.turn()
    world.executor.die()
    world.turn()
    frames = [client.replies[rid].frame for rid in range(1, 5)]
    after_us = sorted(frame.retry_after_us for frame in frames)
    assert after_us[0] >= 2_000_000
    assert len(set(after_us)) == 4, "each another moment"
    assert after_us[-1] < 2_100_000


def test_a_death_is_noticed_without_work(world: World) -> None:
    world.executor.die()
    world.executor_stage.collect(world.clock.ns)
    assert world.executor_stage.link is None
    world.executor_stage.collect(world.clock.ns)


def test_the_link_is_forgotten_before_it_is_closed(world: World) -> None:
    order: list[tuple[int, bool]] = []
    world.executor_stage.on_detach = lambda fd: order.append((fd, world.executor.link.closed))
    world.executor_stage.lose("gone")
    world.executor_stage.lose("gone again")
    assert order == [(11, False)]
    assert world.executor.link.closed


def test_requests_wait_for_the_next_worker(world: World) -> None:
    client = world.client()
    world.executor_stage.lose("gone")
    client.infer(1)
    client.infer(2, timeout_us=1000)
    world.pass_time(2 * MS)
    assert client.codes() == [None, ErrorCode.DEADLINE_IN_QUEUE]
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    world.settle()
    assert client.code(1) == OK


def test_without_another_worker_models_are_closed_until_there_is_one(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2)
    world.executor.die()
    assert state_of(world) == "ready"
    world.executor_stage.reaped(restarting=False, retry_ns=world.clock.ns + 7 * SECOND)
    client.infer(3)
    assert client.codes() == [LOST, CLOSED, CLOSED]
    assert client.replies[3].frame.retry_after_us == 7_000_000
    world.pass_time(8 * SECOND)
    client.infer(4)
    assert client.replies[4].frame.retry_after_us == 1_000_000, "it is being tried"
    assert state_of(world) == "failed"
    world.executor.start()
    client.infer(5)
    world.settle()
    assert client.code(5) == OK
    assert state_of(world) == "ready"
    world.check_rest()


def test_a_model_needs_all_its_workers(world: World) -> None:
    client = world.client()
    for worker in (world.tokenizer, world.executor):
        worker.die()
        worker.stage.reaped(restarting=False)
    world.executor.start()
    client.texts(1)
    client.infer(2)
    assert client.codes() == [CLOSED, None]
    world.tokenizer.start()
    client.texts(3)
    world.settle()
    assert client.codes() == [CLOSED, OK, OK]


def test_an_end_that_is_seen_late_does_not_close_what_works_again(world: World) -> None:
    first = world.executor.link
    world.executor.die()
    world.turn()
    world.executor.start()
    world.executor_stage.reaped(first, restarting=False)
    client = world.client()
    client.infer(1)
    world.settle()
    assert client.code(1) == OK


def test_a_request_answered_before_its_worker_died_is_not_answered_again(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, timeout_us=1000)
    world.turn()
    client.cancel(1)
    world.pass_time(2 * MS)
    world.executor.die()
    world.turn()
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT, ErrorCode.DEADLINE_AFTER_EXECUTION]
    assert client.session.ghosts == 2
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    world.check_rest()


def test_a_dying_worker_may_still_write_to_what_it_had(world: World) -> None:
    """Its slots are not handed out before it is reaped, however long that takes."""
    client = world.client()
    for rid in range(1, 17):
        client.infer(rid)
    world.turn()
    world.executor.die()
    world.turn()
    for rid in range(21, 26):
        client.infer(rid)
    assert client.codes(range(21, 26)) == [ErrorCode.SHED] * 5
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    for rid in range(31, 35):
        client.infer(rid)
    world.settle()
    assert client.codes(range(31, 35)) == [OK] * 4


def test_a_worker_that_comes_back_does_not_open_a_draining_model(world: World) -> None:
    world.executor.die()
    world.turn()
    world.executor_stage.reaped(restarting=True)
    world.engine.drain()
    world.executor.start()
    client = world.client()
    client.infer(1)
    assert client.code(1) == ErrorCode.DRAINING


def test_an_executor_that_comes_back_does_not_open_a_model_without_tokenizer(world: World) -> None:
    world.tokenizer.die()
    world.tokenizer_stage.reaped(restarting=False)
    world.executor.die()
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    client = world.client()
    client.texts(1)
    client.infer(2)
    assert client.codes() == [CLOSED, None]


Deed = Callable[[World], None]


@pytest.mark.parametrize("restarting", [True, False])
def test_reaping_twice_is_harmless(world: World, *, restarting: bool) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.die()
    world.executor_stage.reaped(restarting=restarting)
    world.executor_stage.reaped(restarting=restarting)
    assert client.code(1) == LOST
    world.check()


def test_another_worker_may_serve_while_the_first_is_not_reaped(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    first = world.executor.link
    world.executor.die()
    world.turn()
    world.executor.start()
    client.infer(2)
    world.turn()
    assert world.lane("wide").slots.leased == 2
    world.executor_stage.reaped(first, restarting=True)
    assert world.lane("wide").slots.leased == 1
    assert client.codes() == [LOST, None]
    world.settle()
    assert client.code(2) == OK
    assert world.executor_stage.in_flight == 0
    world.check_rest()
