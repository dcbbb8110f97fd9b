"""What a transport hands in: runs, requests by name, ids, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.play_client import Client
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine._intake import MAX_NAMED
from trioserve_protocol import DType, ErrorCode, Flag, Tag, TensorDecl, tlv

OK = ErrorCode.OK
BY_NAME = tlv(Tag.MODEL, "wide")


def declarations(rows: int, dims: int = 2) -> bytes:
    x = TensorDecl(DType.I64, (rows, dims), rows * dims * 8, 0)
    tag = TensorDecl(DType.U8, (rows, 3), rows * 3, 1)
    return tlv(Tag.TENSOR, x.encode()) + tlv(Tag.TENSOR, tag.encode())


def traceparent(number: int) -> bytes:
    """A TLV that says nothing about the model or the tensors."""
    return tlv(Tag.TRACEPARENT, f"00-{number:032x}-{1:016x}-01")


# ---------------------------------------------------------------- ids


def one(client: Client, rid: int) -> None:
    client.infer(rid)


def several_rows(client: Client, rid: int) -> None:
    client.infer(rid, rows=2)


def many(client: Client, rid: int) -> None:
    client.many(rid, 1)


def large(client: Client, rid: int) -> None:
    body = client.begin(rid)
    if body.arrival is not None:
        body.send()


@pytest.mark.parametrize("send", [one, several_rows, many, large])
@pytest.mark.parametrize("first", [one, several_rows, many, large])
def test_an_id_in_flight_is_refused_without_ending_the_live_request(
    world: World, first: Callable[[Client, int], None], send: Callable[[Client, int], None]
) -> None:
    client = world.client()
    first(client, 7)
    send(client, 7)
    assert [(error.code, error.message) for error in client.refused] == [
        (ErrorCode.RID_IN_FLIGHT, "id 7 is in flight")
    ]
    world.settle()
    assert client.code(7) == OK
    send(client, 7)
    world.settle()
    assert client.code(7) == OK


def test_an_id_in_flight_for_another_model_is_in_flight(world: World) -> None:
    client = world.client()
    client.infer(7)
    client.infer(7, "narrow")
    assert len(client.refused) == 1
    assert world.lane("narrow").stats.errors == {ErrorCode.RID_IN_FLIGHT: 1}


def test_the_same_id_of_another_connection_is_another_id(world: World) -> None:
    one, two = world.client(), world.client()
    one.infer(7)
    two.infer(7)
    assert not two.refused


def test_one_id_in_flight_refuses_an_infer_many_whole(world: World) -> None:
    client = world.client()
    client.infer(12)
    client.many(10, 5)
    assert [error.message for error in client.refused] == ["id 12 is in flight"]
    world.settle()
    assert client.order == [12]


def test_the_id_of_a_ghost_may_be_used_again(world: World) -> None:
    client = world.client()
    client.infer(7)
    world.turn()
    client.cancel(7)
    assert client.code(7) == ErrorCode.CANCELLED_BY_CLIENT
    client.infer(7)
    assert not client.refused
    world.executor.finish()
    assert client.waiting == {7}
    world.settle()
    assert client.code(7) == OK


def test_ids_may_fall(world: World) -> None:
    client = world.client()
    client.many(100, 5)
    for rid in (5, 4, 99, 105):
        client.infer(rid)
    world.settle()
    assert set(client.codes()) == {OK}


# ---------------------------------------------------------------- by name, with a meta block


def test_a_request_by_name(world: World) -> None:
    client = world.client("narrow")
    client.infer(1, handle=0, meta=BY_NAME)
    client.infer(2, handle=0, meta=BY_NAME, rows=2)
    client.many(3, 2, handle=0, meta=BY_NAME)
    world.settle()
    assert client.codes() == [OK] * 4


def test_a_name_is_looked_up_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client("narrow")
    client.infer(1, handle=0, meta=BY_NAME)
    monkeypatch.setattr(world.engine, "find", None)
    client.infer(2, handle=0, meta=BY_NAME)
    world.settle()
    assert client.codes() == [OK] * 2


def test_what_was_looked_up_is_forgotten_in_time(world: World) -> None:
    client = world.client()
    for number in range(2 * MAX_NAMED):
        client.infer(number + 1, handle=0, meta=BY_NAME + traceparent(number))
        world.settle()
        assert 1 <= len(client.session.named) <= MAX_NAMED


def test_binding_a_handle_anew_forgets_what_was_looked_up(world: World) -> None:
    client = world.client()
    client.infer(1, meta=declarations(1))
    assert client.session.named
    client.session.unbind(1)
    client.infer(2, meta=declarations(1))
    assert client.code(2) == ErrorCode.HANDLE_NOT_BOUND
    client.session.bind(1, world.lane("narrow"), None)
    client.infer(3, meta=declarations(1))
    world.settle()
    assert world.lane("narrow").stats.ok == 1


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (tlv(Tag.MODEL, "nobody"), ErrorCode.MODEL_NOT_FOUND),
        (BY_NAME + tlv(Tag.VERSION, (9).to_bytes(4, "little")), ErrorCode.VERSION_NOT_FOUND),
        (traceparent(1), ErrorCode.INVALID_META),
        (BY_NAME + declarations(1, dims=3), ErrorCode.INVALID_SHAPE),
    ],
)
def test_a_meta_block_that_does_not_fit_is_refused(world: World, meta: bytes, code: ErrorCode) -> None:
    client = world.client()
    client.infer(1, handle=0, meta=meta)
    assert client.code(1) == code
    client.many(2, 1, handle=0, meta=meta)
    assert client.code(2) == code
    assert client.session.taken == 2
    assert not client.session.named


def test_a_version_may_be_asked_for(world: World) -> None:
    client = world.client()
    client.infer(1, handle=0, meta=BY_NAME + tlv(Tag.VERSION, (1).to_bytes(4, "little")))
    assert client.waiting == {1}


def test_tensors_may_be_declared_on_a_bound_handle(world: World) -> None:
    client = world.client()
    client.infer(1, meta=declarations(1))
    client.infer(2, meta=declarations(2))
    world.settle()
    assert client.codes() == [OK, ErrorCode.INVALID_SHAPE]


def test_an_infer_many_that_was_looked_up_does_not_open_the_way_for_more_rows(world: World) -> None:
    """Both have the same meta, rows and size; only one INFER may not have so many rows."""
    client = world.client()
    meta = traceparent(1)
    client.many(1, 5, meta=meta)
    client.infer(10, rows=5, meta=meta)
    assert client.code(10) == ErrorCode.TOO_MANY_ROWS


def test_a_refused_frame_does_not_end_the_live_request_of_its_id(world: World) -> None:
    client = world.client()
    client.infer(7)
    client.infer(7, handle=0, meta=tlv(Tag.MODEL, "nobody"))
    assert [error.code for error in client.refused] == [ErrorCode.MODEL_NOT_FOUND]
    assert client.waiting == {7}
    client.owe([7])
    world.intake.refuse_frame(client.session, 7, 1, ErrorCode.UNKNOWN_FLAG, "flags", requests=1)
    assert [error.code for error in client.refused] == [ErrorCode.MODEL_NOT_FOUND, ErrorCode.UNKNOWN_FLAG]
    assert client.waiting == {7}


def test_a_refused_control_frame_is_answered_by_its_id(world: World) -> None:
    client = world.client()
    client.owe([9])
    world.intake.refuse_frame(client.session, 9, 1, ErrorCode.UNKNOWN_TYPE, "", requests=0)
    assert client.code(9) == ErrorCode.UNKNOWN_TYPE
    assert client.session.taken == 0


# ---------------------------------------------------------------- what the client takes


def test_a_result_larger_than_the_client_takes_is_refused_before_it_runs(world: World) -> None:
    client = world.client()
    client.session.max_body_nbytes = 24
    client.infer(1)
    client.infer(2, rows=2)
    client.many(3, 2)
    world.settle()
    assert client.codes() == [OK, ErrorCode.OUT_OF_RANGE, OK, OK]
    assert all(frame.rows == 1 for frame in client.frames if not hasattr(frame, "code"))
    client.session.max_body_nbytes = 16
    client.infer(5, handle=0, meta=BY_NAME)
    client.many(6, 2, handle=0, meta=BY_NAME)
    assert set(client.codes((5, 6, 7))) == {ErrorCode.OUT_OF_RANGE}


# ---------------------------------------------------------------- counting


def test_all_that_was_sent_counts_for_goaway(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(1)
    client.infer(2, payload=b"")
    client.many(10, 3)
    client.many(10, 3)
    client.run(range(20, 30))
    client.infer(40, handle=9)
    assert client.session.taken == 1 + 1 + 1 + 3 + 3 + 10 + 1


def test_retry_after_grows_with_the_queue(world: World) -> None:
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 10 * MS})
    engine = world.engine
    draining, shed = ErrorCode.DRAINING, ErrorCode.SHED
    assert engine.retry_after_us(lane, draining) == 10_000
    client = world.client()
    client.run(range(1, 13))
    assert engine.retry_after_us(lane, draining) == 40_000
    lane.service = ServiceModel({})
    assert engine.retry_after_us(lane, draining) == 1_000
    assert engine.retry_after_us(lane, shed) == 1_000
    assert engine.retries_after_us(lane, 2).tolist() == [1_000, 1_000]
    lane.service = ServiceModel({1: 10**15})
    assert engine.retry_after_us(lane, draining) == 60_000_000


def test_refusals_of_a_run_read_the_clock_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 10 * MS})
    readings: list[int] = []

    def now_ns() -> int:
        readings.append(world.clock.ns)
        return world.clock.ns

    monkeypatch.setattr(world.clock, "now_ns", now_ns)
    singly = [world.engine.retry_after_us(lane, ErrorCode.SHED) for _ in range(3)]
    assert len(readings) == 3
    lane.scheduler.rule._promised_ns = 0.0
    assert world.engine.retries_after_us(lane, 3).tolist() == pytest.approx(singly, abs=1)
    assert len(readings) == 4


def test_a_noreply_request_is_answered_without_a_body(world: World) -> None:
    client = world.client()
    client.infer(1, flags=int(Flag.NOREPLY))
    client.infer(2, flags=int(Flag.NOREPLY), rows=2)
    client.many(3, 3, flags=int(Flag.NOREPLY))
    world.settle()
    assert client.codes() == [OK] * 5
    assert all(not reply.frame.payload for reply in client.replies.values())


def test_a_cancel_past_the_last_id_does_not_go_on_at_the_first(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2**64 - 1)
    client.cancel(2**64 - 1, 5)
    world.settle()
    assert client.codes() == [OK, ErrorCode.CANCELLED_BY_CLIENT]
