"""Batches that nobody waits for any more: the worker is told once, in the same turn, and nothing is learnt of them."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.world import MS, World
from trioserve.engine import Engine
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK


def test_a_batch_is_abandoned_with_its_last_request(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, rows=2)
    world.turn()
    client.cancel(1)
    world.turn()
    assert world.executor.link.abandoned == []
    client.cancel(2)
    world.turn()
    world.turn()
    assert world.executor.link.abandoned == [1]
    assert world.lane("wide").stats.batches_abandoned == 1


def test_deadlines_count_like_cancels(world: World) -> None:
    client = world.client()
    client.infer(1, timeout_us=1000)
    client.infer(2, timeout_us=3000)
    world.turn()
    world.pass_time(2 * MS)
    assert world.executor.link.abandoned == []
    world.pass_time(2 * MS)
    assert world.executor.link.abandoned == [1]


def test_a_connection_that_closes_takes_its_batches_with_it(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    gone, stays = world.client(), world.client()
    gone.run(range(1, 5))
    stays.infer(1)
    world.turn()
    assert len(world.executor.sent) == 2
    gone.close()
    world.turn()
    assert world.executor.link.abandoned == [1]
    assert stays.code(1) is None


def test_nothing_is_learnt_from_what_was_ended_early(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = world.lane("wide")
    learnt: list[int] = []
    monkeypatch.setattr(lane.service, "observe", lambda units, run_ns, *_: learnt.append(run_ns))
    client = world.client()
    client.infer(1)
    world.turn()
    client.cancel(1)
    world.turn()
    world.executor.finish(code=int(ErrorCode.CANCELLED), took_ns=5)
    assert learnt == []
    client.infer(2)
    world.settle()
    assert client.code(2) == OK
    assert len(learnt) == 1


def test_orders_are_not_given_to_a_worker_that_is_gone(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.die()
    world.turn()
    client.cancel(1)
    world.turn()
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    world.turn()
    assert world.executor.link.abandoned == []


def test_a_batch_that_is_served_costs_no_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioserve.engine._executor.abandon_dead", pytest.fail)
    assert isinstance(world.engine, Engine)
    client = world.client()
    client.run(range(1, 9))
    world.settle()
    assert client.codes() == [OK] * 8


def test_a_batch_that_the_worker_will_not_begin_gives_its_rows_back_at_once(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    for rid in range(5, 9):
        client.cancel(rid)
    world.turn()
    assert world.executor.link.abandoned == [2]
    assert world.lane("wide").slots.leased == 8
    world.executor.skip(2)
    assert world.lane("wide").slots.leased == 4
    assert client.session.ghosts == 0
    world.check()
    world.executor_stage.skipped(2)
    world.executor_stage.skipped(1)
    world.executor_stage.skipped(77)
    world.check()
    client.run(range(11, 15))
    world.settle()
    assert client.codes([1, 2, 3, 4, *range(11, 15)]) == [OK] * 8


def test_rows_that_came_back_early_are_not_given_back_again(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    client.cancel()
    world.turn()
    assert world.executor.link.abandoned == [1, 2]
    world.executor.skip(2)
    client.run(range(11, 15))
    world.executor.die()
    world.turn()
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    world.settle()
    assert client.codes(range(11, 15)) == [OK] * 4
