"""Requests admitted as columns: runs of one connection, and one request each of many."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_client import Client
from tests.engine.play_models import body_of, fixed_config, input_rows
from tests.engine.world import MS, World
from trioserve.config import ServerLimits
from trioserve_protocol import ErrorCode, InferRun

OK = ErrorCode.OK


def test_a_run_is_admitted_as_columns(world: World) -> None:
    client = world.client()
    client.run(range(1, 13))
    world.turn()
    assert world.executor.ranges() == [[(0, 4)]]
    world.settle()
    assert client.codes() == [OK] * 12
    assert client.session.taken == 12


def test_a_run_fills_what_is_left_of_a_block(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.run(range(2, 12))
    world.turn()
    assert world.executor.ranges() == [[(0, 4)]]
    world.settle()
    assert client.codes() == [OK] * 11


def test_a_run_need_not_count(world: World) -> None:
    client = world.client()
    client.run([1, 5, 6, 90, 91, 1000, 2**63, 2**64 - 1])
    world.settle()
    assert client.codes() == [OK] * 8


def test_a_run_has_a_deadline_each(world: World) -> None:
    client = world.client()
    client.run(range(1, 9), timeouts_us=[9000, 1000, 9000, 2000, 9000, 9000, 9000, 9000])
    world.pass_time(int(1.5 * MS))
    world.pass_time(MS)
    assert client.order == [2, 4]
    world.settle()


@pytest.mark.parametrize(("slots", "admitted"), [(4, 4), (8, 8), (16, 12)])
def test_a_run_is_admitted_as_far_as_there_are_slots(
    make_world: MakeWorld, slots: int, admitted: int
) -> None:
    world = make_world(configs=[fixed_config("wide", slots=slots)])
    client = world.client()
    client.run(range(1, 13))
    assert client.codes() == [None] * admitted + [ErrorCode.SHED] * (12 - admitted)


def test_a_run_is_admitted_as_far_as_the_window_goes(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=5))
    client = world.client()
    client.run(range(1, 9))
    assert client.codes() == [None] * 5 + [ErrorCode.CREDIT_EXCEEDED] * 3
    client.run(range(11, 19))
    assert set(client.codes(range(11, 19))) == {ErrorCode.CREDIT_EXCEEDED}


def test_a_run_of_the_wrong_size_is_refused_with_an_explanation(world: World) -> None:
    client = world.client()
    run = InferRun(
        8, 1, 1, b"", np.arange(1, 9, dtype=np.uint64), np.full(8, 8, np.uint16), np.zeros(8, np.uint32),
        np.zeros((8, 32), np.uint8),
    )  # fmt: skip
    client.owe(range(1, 9))
    client.offer(run)
    assert set(client.codes()) == {ErrorCode.INVALID_SIZE}
    assert "expected 24 bytes for 1 rows, got 32" in client.replies[8].message


def test_a_run_of_several_rows_each_goes_one_by_one(world: World) -> None:
    client = world.client()
    client.run(range(1, 9), rows=2)
    world.settle()
    assert client.codes() == [OK] * 8


def test_a_run_for_an_unknown_handle_is_refused_one_by_one(world: World) -> None:
    client = world.client("narrow")
    client.run(range(1, 9), "wide")
    assert set(client.codes()) == {ErrorCode.HANDLE_NOT_BOUND}
    assert client.session.taken == 8
    assert world.lane("wide").stats.received == 0


def test_a_run_with_an_id_in_flight_refuses_that_request_only(world: World) -> None:
    client = world.client()
    client.infer(3)
    client.run(range(1, 9))
    assert [error.code for error in client.refused] == [ErrorCode.RID_IN_FLIGHT]
    world.settle()
    assert client.codes() == [OK] * 8


@pytest.mark.parametrize("rids", [[5, 4, 3, 2, 1, 8, 7, 6], [1, 1, 2, 3, 4, 5, 6, 7]])
def test_a_run_that_does_not_ascend_goes_one_by_one(world: World, rids: list[int]) -> None:
    client = world.client()
    client.run(rids)
    world.settle()
    assert client.codes() == [OK] * len(set(rids))
    assert len(client.refused) == len(rids) - len(set(rids))


# ---------------------------------------------------------------- one of many connections each


def across(world: World, clients: list[Client], rid: int) -> None:
    """One plain request of each of several connections, as one run."""
    bodies = []
    for client in clients:
        tensors = input_rows(client.session.index, rid, 1)
        client._expect(rid, tuple(t.tobytes() for t in (7 - 3 * tensors[0], tensors[1] ^ 0xFF)))
        client.owe([rid])
        bodies.append(np.frombuffer(body_of(*tensors), np.uint8))
    run = InferRun(
        len(clients), 1, 1, b"", np.full(len(clients), rid, np.uint64), np.full(len(clients), 8, np.uint16),
        np.zeros(len(clients), np.uint32), np.stack(bodies),
    )  # fmt: skip
    sessions = [client.session for client in clients]
    world.intake.admit_across(world.lane("wide"), sessions, run, world.clock.ns)


def test_one_request_each_of_many_connections_is_one_run(world: World) -> None:
    clients = [world.client() for _ in range(10)]
    across(world, clients, 1)
    world.check()
    world.settle()
    assert [client.code(1) for client in clients] == [OK] * 10
    across(world, clients, 2)
    world.settle()
    assert {client.session.taken for client in clients} == {2}


def test_connections_beyond_the_slots_are_shed(world: World) -> None:
    clients = [world.client() for _ in range(20)]
    across(world, clients, 1)
    assert [client.code(1) for client in clients] == [None] * 16 + [ErrorCode.SHED] * 4
    world.check()
