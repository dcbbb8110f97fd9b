"""Large bodies: admitted from their header, received into their slots, whatever happens on the way."""

from __future__ import annotations

from zlib import crc32

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.config import ServerLimits
from trioserve.engine._arrival import SCRATCH_NBYTES, joined, scratch
from trioserve_protocol import ErrorCode, ResultMany

OK = ErrorCode.OK
CANCELLED = ErrorCode.CANCELLED_BY_CLIENT


@pytest.mark.parametrize("piece", [1, 3, 7, 16, 24, 1000])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_body_lands_in_its_slots(world: World, rows: int, piece: int) -> None:
    client = world.client()
    body = client.begin(1, rows=rows)
    while not body.send(piece):
        world.turn()
        assert not world.executor.sent
    assert body.accepted.received_nbytes == len(body.payload)
    world.settle()
    assert client.codes() == [OK]


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_the_body_of_an_infer_many_lands_in_its_slots(world: World, piece: int) -> None:
    client = world.client()
    client.infer(100)
    body = client.begin(1, rows=6, many=True)
    while not body.send(piece):
        pass
    world.settle()
    assert client.codes() == [OK] * 7
    assert [frame.rows for frame in client.frames if isinstance(frame, ResultMany)] == [3, 3]


def test_others_do_not_wait_for_a_body(world: World) -> None:
    """What arrives while a body is under way is cut around it."""
    client = world.client()
    client.infer(1)
    body = client.begin(2)
    client.infer(3)
    world.turn()
    assert world.executor.ranges() == [[(0, 1), (2, 1)]]
    world.settle()
    body.send()
    world.settle()
    assert client.order == [1, 3, 2]


def test_a_batch_waits_a_moment_for_a_body_that_is_nearly_here(world: World) -> None:
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 5 * MS, 2: 5 * MS + 1_000})
    lane.mean_way_ns = MS / 2
    client = world.client()
    body = client.begin(1)
    client.infer(2)
    world.turn()
    assert not world.executor.sent
    world.pass_time(MS // 4)
    body.send()
    world.turn()
    assert world.executor.ranges() == [[(0, 2)]]


def test_a_body_that_does_not_come_is_not_waited_for(world: World) -> None:
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 5 * MS, 2: 5 * MS + 1_000})
    lane.mean_way_ns = MS / 2
    client = world.client()
    client.begin(1, timeout_us=20_000)
    client.infer(2)
    world.turn()
    world.pass_time(MS)
    assert world.executor.ranges() == [[(1, 1)]]
    world.settle()
    world.pass_time(30 * MS)
    assert client.code(1) == ErrorCode.DEADLINE_IN_QUEUE


# ---------------------------------------------------------------- refused from the header


@pytest.mark.parametrize("many", [False, True])
def test_the_wrong_size(world: World, *, many: bool) -> None:
    client = world.client()
    body = client.begin(1, rows=2, many=many, payload=bytes(1000))
    assert body.arrival is None
    assert set(client.codes()) == {ErrorCode.INVALID_SIZE}
    assert len(client.codes()) == (2 if many else 1)


def test_refusals_of_a_large_infer(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=2, max_queued_nbytes=110))
    client = world.client()
    for rid, rows, code in [(1, 5, ErrorCode.TOO_MANY_ROWS), (2, 4, None), (3, 2, ErrorCode.SHED)]:
        client.begin(rid, rows=rows)
        assert client.code(rid) == code
    client.infer(10)
    client.begin(11)
    assert client.code(11) == ErrorCode.CREDIT_EXCEEDED
    client.cancel()


def test_no_slots_for_a_large_infer(world: World) -> None:
    client = world.client()
    for rid in range(1, 17):
        client.infer(rid)
    client.cancel(2)
    client.cancel(6)
    assert client.begin(20, rows=2).arrival is None
    assert client.code(20) == ErrorCode.SHED
    world.check()


def test_a_closed_model_refuses_from_the_header(world: World) -> None:
    world.engine.drain()
    client = world.client()
    assert client.begin(1).arrival is None
    assert client.begin(2, rows=3, many=True).arrival is None
    assert set(client.codes()) == {ErrorCode.DRAINING}


@pytest.mark.parametrize("piece", [1, 100, 10**6])
def test_the_rest_of_an_infer_many_that_does_not_fit_is_received_and_dropped(
    make_world: MakeWorld, piece: int
) -> None:
    """As with a frame that arrives whole: what becomes of it does not depend on how it was cut up."""
    world = make_world(configs=[fixed_config("wide", slots=8)])
    client = world.client()
    body = client.begin(1, rows=20, many=True)
    assert client.codes() == [None] * 8 + [ErrorCode.SHED] * 12
    assert (client.frames[0].rid, client.frames[0].count) == (9, 12)
    while not body.send(piece):
        pass
    world.settle()
    assert client.codes() == [OK] * 8 + [ErrorCode.SHED] * 12


def test_an_infer_many_larger_than_the_window_from_an_idle_connection(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=2))
    client = world.client()
    body = client.begin(1, rows=5, many=True)
    body.send()
    world.settle()
    assert client.codes() == [OK] * 5


# ---------------------------------------------------------------- answered on the way


def test_a_cancelled_body_is_abandoned(world: World) -> None:
    client = world.client()
    body = client.begin(1, rows=2)
    body.send(10)
    client.cancel(1)
    assert body.accepted.abandoned
    assert client.codes() == [CANCELLED]
    world.check_rest()


def test_an_expired_body_is_abandoned(world: World) -> None:
    client = world.client()
    body = client.begin(1, timeout_us=1000)
    body.send(10)
    world.pass_time(2 * MS)
    assert body.accepted.abandoned
    assert client.codes() == [ErrorCode.DEADLINE_IN_QUEUE]
    world.check_rest()


def test_a_body_is_wanted_as_long_as_one_of_its_requests_is(world: World) -> None:
    client = world.client()
    body = client.begin(1, rows=6, many=True)
    body.send(20)
    client.cancel(2, 2)
    assert not body.accepted.abandoned
    world.check()
    assert world.lane("wide").slots.leased == 6
    body.send()
    world.check()
    world.settle()
    assert client.codes() == [OK, CANCELLED, CANCELLED, OK, OK, OK]


def test_a_body_is_abandoned_with_the_last_of_its_requests(world: World) -> None:
    client = world.client()
    body = client.begin(1, rows=6, many=True)
    client.cancel(1, 5)
    assert not body.accepted.abandoned
    client.cancel(6)
    assert body.accepted.abandoned
    world.check_rest()


def test_slots_of_a_body_under_way_are_not_given_to_others(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide", slots=4)])
    client = world.client()
    body = client.begin(1, rows=4, many=True)
    client.cancel(1, 3)
    client.infer(10)
    assert client.code(10) == ErrorCode.SHED
    body.send()
    client.infer(11)
    assert client.waiting == {4, 11}


@pytest.mark.parametrize("many", [False, True])
def test_a_connection_that_closes_in_the_middle_of_a_body(world: World, *, many: bool) -> None:
    """Its index is free for one other connection, not for two."""
    client = world.client()
    body = client.begin(1, rows=3, many=many)
    body.send(10)
    client.close()
    assert body.accepted.abandoned
    world.check_rest()
    one, two = world.client(), world.client()
    assert one.session.index == client.session.index
    assert two.session.index != one.session.index
    one.infer(1)
    two.infer(2)
    world.settle()
    assert (one.codes(), two.codes()) == ([OK], [OK])


def test_a_body_that_the_transport_gives_up(world: World) -> None:
    client = world.client()
    body = client.begin(1, rows=3, many=True)
    world.intake.break_off(body.accepted, CANCELLED, "the body was not completed")
    assert client.codes() == [CANCELLED] * 3
    assert body.accepted.abandoned
    world.check_rest()


def test_a_worker_gone_for_good_ends_bodies_too(world: World) -> None:
    client = world.client()
    body = client.begin(1)
    world.executor.die()
    world.executor_stage.reaped(restarting=False)
    assert body.accepted.abandoned
    assert client.codes() == [ErrorCode.UNAVAILABLE]


def test_a_body_outlives_a_restart(world: World) -> None:
    client = world.client()
    body = client.begin(1)
    world.executor.die()
    world.turn()
    world.executor_stage.reaped(restarting=True)
    body.send()
    world.executor.start()
    world.settle()
    assert client.codes() == [OK]


# ---------------------------------------------------------------- integrity


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("piece", [7, 1000])
def test_the_crc_of_a_body(world: World, piece: int, *, many: bool) -> None:
    client = world.client()
    payload = client.many_body(1, 3)
    client.expected.clear()
    right = crc32(payload)
    for rid, crc, code in [(11, right, OK), (21, right ^ 1, ErrorCode.CRC_MISMATCH)]:
        rids = range(rid, rid + (3 if many else 1))
        good = client.begin(rid, rows=3, many=many, payload=payload, crc=crc)
        while good.is_open and not good.send(piece):
            pass
        world.settle()
        assert set(client.codes(rids)) == {code}


def test_the_crc_covers_the_meta(world: World) -> None:
    client = world.client()
    payload = client.many_body(1, 3)
    meta = b"\x05\x80\x00\x00\x00\x00\x00\x00"
    body = client.begin(1, rows=3, many=True, payload=payload, meta=meta, crc=crc32(payload, crc32(meta)))
    body.send()
    world.settle()
    assert client.codes() == [OK] * 3


def test_the_crc_covers_what_is_dropped(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide", slots=4)])
    client = world.client()
    payload = client.many_body(1, 9)
    body = client.begin(1, rows=9, many=True, payload=payload, crc=crc32(payload))
    body.send(3)
    body.send()
    world.settle()
    assert client.codes() == [OK] * 4 + [ErrorCode.SHED] * 5


# ---------------------------------------------------------------- memory


def test_scratch_is_bounded() -> None:
    parts = list(scratch(2 * SCRATCH_NBYTES + 100))
    assert [len(part) for part in parts] == [SCRATCH_NBYTES, SCRATCH_NBYTES, 100]
    parts[0][:3] = b"abc"
    assert bytes(parts[2][:3]) == b"abc"
    assert [len(part) for part in scratch(10)] == [10]
    assert not list(scratch(0))


def test_adjacent_ranges_are_joined() -> None:
    assert joined([(0, 2), (2, 1), (5, 1), (6, 4)]) == [(0, 3), (5, 5)]
    assert joined([]) == []
