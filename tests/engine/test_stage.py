"""Workers that die: what they had is answered at once, their slots come back when they are reaped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.world import MS, World
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
LOST = ErrorCode.WORKER_LOST


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
    world.executor.die()
    world.engine.decide(world.clock.ns)
    assert client.code(1) == LOST
    assert world.executor_stage.link is None
    world.check()


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


def test_without_another_worker_models_are_closed(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2)
    world.executor.die()
    world.executor_stage.reaped(restarting=False)
    client.infer(3)
    assert client.codes() == [LOST] * 3
    world.check_rest()


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
    assert client.codes() == [LOST, None]


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
