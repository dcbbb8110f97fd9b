"""Admission of single requests: who gets in, into which slots, and what is charged for it."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.config import ServerLimits
from trioserve.engine._scheduler import OVERDUE_NS
from trioserve_protocol import ErrorCode, Flag

OK = ErrorCode.OK


def test_a_request_is_answered_with_its_result(world: World) -> None:
    client = world.client()
    client.infer(1)
    assert client.waiting == {1}
    world.settle()
    assert client.codes() == [OK]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_request_of_several_rows_is_one_reply(world: World, rows: int) -> None:
    client = world.client()
    client.infer(1, rows=rows)
    world.settle()
    assert client.replies[1].frame.rows == rows


def test_requests_lie_in_one_range_in_order_of_arrival(world: World) -> None:
    one, two = world.client(), world.client()
    one.infer(1)
    two.infer(1, rows=2)
    one.infer(2)
    world.turn()
    assert world.executor.ranges() == [[(0, 4)]]


def test_the_payload_of_each_tensor_is_padded_by_itself(world: World) -> None:
    """Three rows of 3 bytes are 9 bytes and 7 of padding."""
    client = world.client()
    client.infer(1, rows=3)
    world.turn()
    assert bytes(world.lane("wide").slab.input_views[1][:9]) == b"\1\0\0\1\1\0\1\2\0"


@pytest.mark.parametrize(
    ("rows", "payload", "code"),
    [
        (1, bytes(16), ErrorCode.INVALID_SIZE),
        (1, bytes(32), ErrorCode.INVALID_SIZE),
        (2, bytes(24), ErrorCode.INVALID_SIZE),
        (5, bytes(5 * 16 + 16), ErrorCode.TOO_MANY_ROWS),
        (5, bytes(8), ErrorCode.TOO_MANY_ROWS),
    ],
)
def test_a_misshapen_request_is_refused(world: World, rows: int, payload: bytes, code: ErrorCode) -> None:
    client = world.client()
    client.infer(1, rows=rows, payload=payload)
    assert client.code(1) == code
    assert "expected" in client.replies[1].message
    assert world.lane("wide").stats.refused == 1


def test_a_model_without_a_worker_refuses(make_world: MakeWorld) -> None:
    world = make_world(ready=False)
    client = world.client()
    client.infer(1)
    client.infer(2, rows=2)
    client.run(range(10, 20))
    client.many(30, 2)
    assert set(client.codes()) == {ErrorCode.LOADING}
    world.start_workers()
    client.infer(40)
    assert client.waiting == {40}


def test_no_slot_is_a_shed_request(world: World) -> None:
    client = world.client()
    for rid in range(1, 17):
        client.infer(rid, "wide")
    client.infer(17)
    assert client.code(17) == ErrorCode.SHED
    assert client.replies[17].frame.retry_after_us >= 1000
    assert len(client.waiting) == 16


def test_shed_for_rows_although_a_single_one_would_fit(world: World) -> None:
    client = world.client()
    for rid in range(1, 5):
        client.infer(rid, rows=3)
    for rid in range(5, 9):
        client.infer(rid)
    client.infer(9, rows=3)
    assert client.code(9) == ErrorCode.SHED


def test_slots_too_scattered_for_a_request_of_several_rows(world: World) -> None:
    client = world.client()
    for rid in range(1, 17):
        client.infer(rid)
    client.cancel(2)
    client.cancel(6)
    client.infer(20, rows=2)
    assert client.code(20) == ErrorCode.SHED
    world.check()
    client.infer(21)
    assert 21 in client.waiting


def test_shed_for_bytes(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(max_queued_nbytes=60))
    client = world.client()
    client.infer(1)
    client.infer(2)
    client.infer(3)
    assert client.code(3) == ErrorCode.SHED
    client.infer(4, "narrow")
    assert client.code(4) == ErrorCode.SHED


def test_rows_of_a_model_are_limited(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(max_queued_rows=3))
    client = world.client()
    for rid in range(1, 5):
        client.infer(rid)
    client.infer(5, "narrow")
    assert client.codes() == [None, None, None, ErrorCode.SHED, None]


# ---------------------------------------------------------------- credit


@pytest.mark.parametrize("rows", [1, 2])
def test_the_window_in_requests(make_world: MakeWorld, rows: int) -> None:
    world = make_world(limits=ServerLimits(credit_requests=3))
    client, other = world.client(), world.client()
    for rid in range(1, 5):
        client.infer(rid, rows=rows)
    assert client.codes() == [None, None, None, ErrorCode.CREDIT_EXCEEDED]
    assert "3 requests" in client.replies[4].message
    other.infer(1)
    assert other.waiting == {1}
    world.settle()
    client.infer(5, rows=rows)
    assert client.waiting == {5}


def test_the_window_in_bytes(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_nbytes=50))
    client = world.client()
    client.infer(1)
    client.infer(2)
    client.infer(3)
    assert client.codes() == [None, None, ErrorCode.CREDIT_EXCEEDED]


def test_an_idle_connection_may_always_send_one_frame(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_nbytes=8))
    client = world.client()
    client.infer(1)
    client.infer(2)
    assert client.codes() == [None, ErrorCode.CREDIT_EXCEEDED]


def test_ghosts_count_against_the_window(make_world: MakeWorld) -> None:
    """Else a client that sends and cancels would start work faster than it ends."""
    world = make_world(limits=ServerLimits(credit_requests=2))
    client = world.client()
    for rid in (1, 2):
        client.infer(rid)
    world.turn()
    client.cancel()
    client.infer(3)
    assert client.code(3) == ErrorCode.CREDIT_EXCEEDED
    client.infer(4, rows=2)
    assert client.code(4) == ErrorCode.CREDIT_EXCEEDED
    world.executor.finish()
    client.infer(5)
    assert client.waiting == {5}


def test_the_bytes_of_ghosts_count_too(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_nbytes=50))
    client = world.client()
    client.infer(1)
    client.infer(2)
    world.turn()
    client.cancel(1)
    client.infer(3)
    assert client.code(3) == ErrorCode.CREDIT_EXCEEDED
    world.executor.finish()
    client.infer(4)
    assert client.waiting == {4}


# ---------------------------------------------------------------- what the policy is told


def test_the_view_of_a_queue(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    client.infer(1)
    world.clock.ns += MS
    client.infer(2, timeout_us=500)
    view = lane.scheduler.view(0, world.clock.ns)
    assert (view.queued_rows, view.max_rows, view.free_ns) == (2, 4, 0)
    assert view.oldest_ready_ns == world.clock.ns - MS
    assert view.head_deadline_ns == world.clock.ns + MS // 2
    assert (view.announced_rows, view.etas(world.clock.ns)) == (0, [])


def test_the_view_with_a_body_under_way(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    client.infer(1, rows=3, timeout_us=9000)
    client.infer(2, timeout_us=500)
    body = client.begin(3, rows=2)
    lane.mean_way_ns = 3 * MS
    lane.door.tell(world.clock.ns)
    view = lane.scheduler.view(0, world.clock.ns)
    assert view.head_deadline_ns == world.clock.ns + MS // 2
    assert view.announced_rows == 2
    assert view.etas(world.clock.ns) == [(world.clock.ns + 3 * MS, 1.0)] * 2
    late_ns = world.clock.ns + 3 * MS + OVERDUE_NS
    assert len(view.etas(late_ns - 1)) == 2
    assert view.etas(late_ns) == []
    body.send()


def test_every_row_of_a_request_has_its_deadline(world: World) -> None:
    """The columns of the rows held what an earlier request left there."""
    client = world.client()
    for rid in range(1, 5):
        client.infer(rid, timeout_us=1)
    world.pass_time(2 * MS)
    client.infer(10, rows=3, timeout_us=9000)
    body = client.begin(11)
    assert world.lane("wide").scheduler.view(0, world.clock.ns).head_deadline_ns == world.clock.ns + 9 * MS
    body.send()


def test_the_time_of_arrivals_is_learned(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    body = client.begin(1)
    world.clock.ns += 8 * MS
    body.send()
    assert lane.mean_way_ns == 8 * MS
    body = client.begin(2)
    world.clock.ns += 24 * MS
    body.send()
    assert lane.mean_way_ns == 9 * MS


def test_the_default_deadline_is_the_models(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide", default_deadline_ms=3.0)])
    client = world.client()
    client.infer(1)
    client.infer(2, timeout_us=4000)
    client.run(range(10, 18), timeouts_us=[0, 1, 2, 3, 4, 5, 0, 0])
    slots = world.lane("wide").slots
    begun_ns = world.clock.ns
    deadlines = {slots.rid[slot]: slots.deadline_ns[slot] - begun_ns for slot in slots.live_requests()}
    assert [deadlines[rid] for rid in (1, 2, 10, 11, 15, 16)] == [3 * MS, 4 * MS, 3 * MS, 1000, 5000, 3 * MS]


def test_flags_that_are_not_for_the_engine_are_ignored(world: World) -> None:
    client = world.client()
    client.infer(1, flags=int(Flag.RETRY) | 3)
    client.infer(2, flags=1 << 15, rows=2)
    world.settle()
    assert client.codes() == [OK, OK]
    assert type(client.replies[2].frame).__name__ == "Result"
