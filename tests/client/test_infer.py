"""One request, without I/O."""

from __future__ import annotations

import numpy as np
import pytest

from tests.client.fake_server import WIDE
from tests.client.wire import ROW, Wire, result
from trioserve.client._calls import ModelKey
from trioserve.errors import (
    DeadlineInQueue,
    FrameTooLarge,
    Shed,
)
from trioserve_protocol import (
    ErrorCode,
    Flag,
    PeerLimits,
    RequestClass,
    Tag,
    Timing,
    error_frame,
    frame_bytes,
    tlv,
)


def test_the_header_says_class_retry_sampling_and_what_is_left_of_the_deadline() -> None:
    wire = Wire()
    wire.bound()
    wire.infer(deadline_s=100.25, priority=RequestClass.SHEDDABLE, sampled=True, retry=True)
    wire.infer(deadline_s=100.0 + 1e-9)
    wire.infer()
    first, second, third = wire.sent()
    assert (first.timeout_us, second.timeout_us, third.timeout_us) == (250_000, 1, 0)
    assert first.flags == RequestClass.SHEDDABLE | Flag.END | Flag.SAMPLED | Flag.RETRY
    assert third.flags == Flag.END


def test_what_is_late_is_not_sent() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer(deadline_s=100.0)
    assert wire.sent() == []
    assert isinstance(call.error, DeadlineInQueue)


def test_a_result_brings_times_and_owns_its_memory() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer(ROW[None], sampled=True, attempt=3)
    (infer,) = wire.sent()
    wire.now_s += 0.002
    timing = Timing(received_ns=1, sent_ns=2)
    wire.reply(result(infer.rid, [ROW], meta=tlv(Tag.TIMING, timing.encode()), timeout_us=900, aux=300))
    inference = call.inference
    assert inference.outputs["y"].shape == (1, 4)
    assert (inference.server_us, inference.queue_us, inference.attempts) == (900, 300, 3)
    assert inference.round_trip_us == pytest.approx(2000, abs=1)
    assert inference.timing == timing


@pytest.mark.parametrize("count", [3, 4, 20])
def test_equal_results_in_one_read_end_their_calls(count: int) -> None:
    wire = Wire()
    wire.bound()
    calls = [wire.infer() for _ in range(count)]
    infers = wire.sent()
    wire.reply(*[result(infer.rid, [ROW + index]) for index, infer in enumerate(infers)])
    assert [call.inference.output[0] for call in calls] == list(range(count))


def test_results_may_come_in_any_order() -> None:
    wire = Wire()
    wire.bound()
    calls = [wire.infer() for _ in range(3)]
    infers = wire.sent()
    wire.reply(*[result(infers[index].rid, [ROW + index]) for index in (2, 0, 1)])
    assert [call.inference.output[0] for call in calls] == [0, 1, 2]


def test_errors_are_the_servers_classes_with_its_advice() -> None:
    wire = Wire()
    wire.bound()
    shed, never = wire.infer(), wire.infer()
    first, second = wire.sent()
    wire.reply(error_frame(first.rid, ErrorCode.SHED, "full", retry_after_us=250_000))
    wire.reply(error_frame(second.rid, ErrorCode.SHED, retry_after_us=0xFFFF_FFFF))
    assert isinstance(shed.error, Shed)
    assert (shed.error.message, shed.error.retry_after_s, shed.error.retryable) == ("full", 0.25, True)
    assert not never.error.retryable


def test_a_large_result_is_received_into_the_callers_array() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    x = np.random.default_rng(1).random((3, 50_000), np.float32)
    call = wire.infer(x, ModelKey("wide", 0, None))
    data = frame_bytes(wire.session.take(wire.now_s))
    rid = int.from_bytes(data[8:16], "little")
    whole = result(rid, x)
    half = memoryview(bytearray(whole[:100_000]))
    used = wire.session.receive(half, wire.now_s)
    assert used == 32
    body = wire.session.body
    assert body is not None
    taken = body.fill_from(half[used:])
    wire.session.body_received(taken, wire.now_s)
    target = body.views[0]
    target[:] = whole[100_000:]
    body.advance(len(target))
    wire.session.body_received(len(whole) - 100_000, wire.now_s)
    assert np.array_equal(call.inference.output, x)
    assert wire.idle


def test_a_request_larger_than_the_servers_frames_is_refused_here() -> None:
    wire = Wire(welcome=PeerLimits(max_frame_nbytes=4096))
    wire.bound(WIDE, "wide")
    call = wire.infer(np.zeros(50_000, np.float32), ModelKey("wide", 0, None))
    many = wire.many(np.zeros((2, 50_000), np.float32), ModelKey("wide", 0, None))
    assert wire.sent() == []
    assert isinstance(call.error, FrameTooLarge)
    assert set(many.collected.codes) == {ErrorCode.FRAME_TOO_LARGE}
