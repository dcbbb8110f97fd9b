"""INFER_MANY: many requests in one frame, admitted in part, split over batches, answered together."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.config import ServerLimits
from trioserve_protocol import ErrorCode, Flag, Result, ResultMany

OK = ErrorCode.OK


def spans(frames: list[object]) -> list[tuple[int, int]]:
    """(first id, ids) of the RESULT_MANY frames."""
    return [(frame.rid, frame.rows) for frame in frames if isinstance(frame, ResultMany)]


def test_the_requests_are_split_over_batches(world: World) -> None:
    client = world.client()
    client.many(1, 10)
    assert client.session.inflight == 10
    world.turn()
    assert world.executor.ranges() == [[(0, 4)]]
    world.settle()
    assert client.codes() == [OK] * 10
    assert spans(client.frames) == [(1, 4), (5, 4), (9, 2)]


def test_what_runs_together_is_answered_together(world: World) -> None:
    client = world.client()
    client.infer(100)
    client.many(1, 5)
    client.many(11, 2)
    world.settle()
    assert spans(client.frames) == [(1, 3), (4, 2), (11, 2)]
    assert [type(frame) for frame in client.frames].count(Result) == 1


def test_requests_of_two_frames_are_not_answered_by_one(world: World) -> None:
    """Only ids of one INFER_MANY may be, also where they follow each other."""
    client = world.client()
    client.many(1, 2)
    client.many(3, 2)
    world.settle()
    assert spans(client.frames) == [(1, 2), (3, 2)]


def test_a_cancelled_request_is_a_gap(world: World) -> None:
    client = world.client()
    client.many(1, 4)
    world.turn()
    client.cancel(2)
    world.settle()
    assert client.codes() == [OK, ErrorCode.CANCELLED_BY_CLIENT, OK, OK]
    assert spans(client.frames) == [(1, 1), (3, 2)]


def test_a_failed_request_is_a_gap(world: World) -> None:
    client = world.client()
    client.many(1, 4)
    world.turn()
    world.executor.finish(failures=[(2, int(ErrorCode.MODEL_RAISED), "bad row")])
    assert client.codes() == [OK, OK, ErrorCode.MODEL_RAISED, OK]
    assert spans(client.frames) == [(1, 2), (4, 1)]
    assert client.replies[3].message == "bad row"


def test_timing_is_asked_for_each_request(world: World) -> None:
    client = world.client()
    client.many(1, 3, flags=int(Flag.SAMPLED))
    world.settle()
    assert spans(client.frames) == [(1, 1), (2, 1), (3, 1)]
    assert all(frame.meta for frame in client.frames)


def test_admitted_as_far_as_there_are_slots(world: World) -> None:
    client = world.client()
    client.many(1, 20)
    assert client.codes() == [None] * 16 + [ErrorCode.SHED] * 4
    [refusal] = client.frames
    assert (refusal.rid, refusal.count) == (17, 4)
    assert world.lane("wide").stats.received == 20


def test_admitted_as_far_as_there_are_bytes(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(max_queued_nbytes=100))
    client = world.client()
    client.many(1, 20)
    assert client.codes().count(None) == 5


def test_slots_in_many_places(world: World) -> None:
    client = world.client()
    for rid in range(1, 17):
        client.infer(rid)
    for rid in range(2, 17, 4):
        client.cancel(rid)
    client.many(100, 6)
    assert client.codes(range(100, 106)) == [None] * 4 + [ErrorCode.SHED] * 2
    world.check()
    world.settle()
    assert client.codes(range(100, 104)) == [OK] * 4


def test_the_window_refuses_the_whole_frame(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=6))
    client = world.client()
    client.infer(100)
    client.many(1, 6)
    assert set(client.codes(range(1, 7))) == {ErrorCode.CREDIT_EXCEEDED}
    client.many(11, 5)
    assert client.codes(range(11, 16)) == [None] * 5


def test_an_idle_connection_may_send_more_than_the_window(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=3, credit_nbytes=30))
    client = world.client()
    client.many(1, 8)
    assert client.codes() == [None] * 8
    client.many(11, 1)
    assert client.code(11) == ErrorCode.CREDIT_EXCEEDED
    world.settle()
    client.many(21, 8)
    assert client.codes(range(21, 29)) == [None] * 8


def test_a_ghost_is_not_idle(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=3))
    client = world.client()
    client.infer(1)
    world.turn()
    client.cancel(1)
    client.many(11, 3)
    assert set(client.codes(range(11, 14))) == {ErrorCode.CREDIT_EXCEEDED}
    client.many(21, 2)
    assert client.codes((21, 22)) == [None, None]


def test_one_deadline_for_all(world: World) -> None:
    client = world.client()
    client.many(1, 6, timeout_us=1000)
    world.turn()
    world.pass_time(2 * MS)
    assert client.codes() == [ErrorCode.DEADLINE_AFTER_EXECUTION] * 4 + [ErrorCode.DEADLINE_IN_QUEUE] * 2


def test_the_wrong_size_is_refused_whole(world: World) -> None:
    client = world.client()
    many_body = client.many_body
    client.many_body = lambda rid, count: many_body(rid, count) + bytes(8)  # type: ignore[method-assign]
    client.many(1, 3)
    assert set(client.codes()) == {ErrorCode.INVALID_SIZE}
    assert len(client.frames) == 1


def test_times_in_a_reply_are_the_largest(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide")])
    client = world.client()
    client.infer(100)
    world.turn()
    client.many(1, 3)
    world.clock.ns += 3 * MS
    world.executor.finish()
    world.turn()
    world.clock.ns += 2 * MS
    world.executor.finish()
    reply = client.replies[1].frame
    assert (reply.server_us, reply.queue_us) == (5000, 3000)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_cancelled_as_a_whole(world: World, count: int) -> None:
    client = world.client()
    client.many(1, count)
    client.cancel(1, count)
    assert set(client.codes()) == {ErrorCode.CANCELLED_BY_CLIENT}
    world.check_rest()
