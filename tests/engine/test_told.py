"""What the engine tells a model's scheduler of its requests and connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_client import Client
from tests.engine.play_models import fixed_config
from tests.engine.test_columns import across
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine import Lane
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
ROUNDS = 20
THINK_NS = 2 * MS


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Two models of batches of 4 in 5 ms on one executor, and a default deadline of 1 s."""
    world = make_world(configs=[fixed_config("wide"), fixed_config("narrow")])
    for lane in world.engine.lanes:
        lane.service = ServiceModel({1: 4 * MS, 4: 5 * MS}, {1: 40_000, 4: 50_000})
    return world


def wide(world: World) -> Lane:
    return world.lane("wide")


# ---------------------------------------------------------------- promises


def test_an_admitted_request_that_expires_in_the_queue_is_a_broken_promise(world: World) -> None:
    lane = wide(world)
    client = world.client()
    client.infer(1)
    world.turn()
    rid = 1
    while rid == 1 or client.code(rid) is not None:  # the shortest time that it is admitted with
        rid += 1
        client.infer(rid, timeout_us=8_000 + 50 * rid)
    z = lane.scheduler.margins.z
    world.pass_time(20 * MS)
    assert (client.code(1), client.code(rid)) == (None, ErrorCode.DEADLINE_IN_QUEUE)
    world.executor.finish()
    assert client.code(1) == OK
    assert lane.scheduler.margins.z > z


# ---------------------------------------------------------------- clients that come back


def one(client: Client, rid: int) -> None:
    client.infer(rid)


def several_rows(client: Client, rid: int) -> None:
    client.infer(rid, rows=2)


def gathered(client: Client, rid: int) -> None:
    across(client.world, [client], rid)


def converse(client: Client, send: Callable[[Client, int], None] = one) -> None:
    """A client sends its next request a while after it has the reply to the last one, and stops after a reply."""
    world = client.world
    for rid in range(1, ROUNDS + 1):
        world.clock.ns += THINK_NS
        send(client, rid)
        world.turn()
        world.clock.ns += 4 * MS
        world.executor.finish(took_ns=4 * MS)
        assert client.code(rid) == OK


@pytest.mark.parametrize("send", [one, several_rows, gathered])
def test_a_client_that_comes_back_each_time_is_expected(
    world: World, send: Callable[[Client, int], None]
) -> None:
    lane = wide(world)
    converse(world.client(), send)
    [(eta_ns, likely)] = lane.returns.etas(world.clock.ns)
    assert THINK_NS <= eta_ns - world.clock.ns <= 1.1 * THINK_NS
    assert likely > 0.8


def test_a_client_that_has_closed_is_expected_no_more(world: World) -> None:
    """Nor is the one that its index is given to, before that has come back as often."""
    lane = wide(world)
    before = world.client()
    converse(before)
    before.close()
    assert lane.returns.etas(world.clock.ns) == []
    after = world.client()
    assert after.session.index == before.session.index
    after.infer(1)
    world.settle()
    assert after.code(1) == OK
    assert lane.returns.etas(world.clock.ns) == []
