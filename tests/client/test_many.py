"""Columns of requests, without I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.client.fake_server import LENGTHS, PAIR, SCALE, WIDE, decode_inputs
from tests.client.wire import Wire, many_results, result, singles
from trioserve.client._calls import ModelKey
from trioserve.client._failures import NotSent
from trioserve.errors import (
    SignatureChanged,
)
from trioserve_protocol import (
    Bind,
    ErrorCode,
    InferMany,
    bound_frame,
    check_request,
    credit_frame,
    error_frame,
    frame_bytes,
)


def test_fixed_shapes_go_as_columns_within_the_window() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(8, 1 << 20))
    x = np.arange(48, dtype=np.float32).reshape(12, 4)
    call = wire.many(x)
    first, second = wire.sent()
    assert isinstance(first, InferMany)
    assert (first.rows, second.rows, second.rid) == (4, 4, first.rid + 4)
    for event in (first, second):
        at = event.rid - first.rid
        assert check_request(SCALE, event.rows, len(event.payload), b"", many=True) is None
        assert np.array_equal(decode_inputs(SCALE, 4, event.payload)[0], x[at : at + 4])
    wire.reply(many_results(first.rid + 2, x[2:4] * 2))
    assert wire.sent() == []
    wire.reply(many_results(first.rid, x[0:2] * 2))
    (third,) = wire.sent()
    assert third.rows == 4
    wire.reply(many_results(second.rid, x[4:8] * 2), many_results(third.rid, x[8:] * 2))
    assert call.done
    assert np.array_equal(call.collected.output, x * 2)
    assert call.collected.ok.all()
    assert wire.idle


def test_several_inputs_are_sent_tensor_by_tensor() -> None:
    wire = Wire()
    wire.bound(PAIR, "pair")
    inputs: dict[str, Any] = {
        "a": np.arange(9).reshape(3, 3).astype(np.int32),
        "b": np.array([1, 2, 3], np.uint8),
    }
    call = wire.many(inputs, ModelKey("pair", 0, None))
    (event,) = wire.sent()
    a, b = decode_inputs(PAIR, 3, event.payload)
    assert np.array_equal(a, inputs["a"])
    assert np.array_equal(b, inputs["b"])
    wire.reply(many_results(event.rid, np.array([1, 2, 3]), np.ones((3, 3), bool)))
    assert call.collected.outputs["sum"].tolist() == [1, 2, 3]


def test_text_goes_as_pipelined_requests_in_one_write() -> None:
    wire = Wire()
    wire.bound(LENGTHS, "lengths")
    texts = ["a", "bc", "", "defg" * 10]
    call = wire.many(texts, ModelKey("lengths", 0, None))
    buffers = wire.session.take(wire.now_s)
    events, _ = wire.server.receive(memoryview(frame_bytes(buffers)))
    infers = [one for event in events for one in singles(event)]
    assert [decode_inputs(LENGTHS, 1, event.payload)[0][0].decode() for event in infers] == texts
    for event in reversed(infers):
        length = len(decode_inputs(LENGTHS, 1, event.payload)[0][0])
        wire.reply(result(event.rid, np.array([length], np.int32)))
    assert call.collected.output.tolist() == [1, 2, 0, 40]


def test_one_failed_row_does_not_disturb_the_others() -> None:
    wire = Wire()
    wire.bound()
    call = wire.many(np.ones((5, 4), np.float32))
    (event,) = wire.sent()
    ones = np.ones((1, 4), np.float32)
    wire.reply(
        result(event.rid, ones),
        error_frame(event.rid + 1, ErrorCode.SHED, "full", count=2, retry_after_us=1000),
        many_results(event.rid + 3, np.ones((2, 4), np.float32)),
    )
    collected = call.collected
    assert collected.codes.tolist() == [0, ErrorCode.SHED, ErrorCode.SHED, 0, 0]
    assert collected.output[:, 0].tolist() == [1, 0, 0, 1, 1]
    assert [(failure.first, failure.count) for failure in collected.failures] == [(1, 2)]


def test_large_column_results_are_received_in_place() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    x = np.random.default_rng(1).random((4, 50_000), np.float32)
    call = wire.many(x, ModelKey("wide", 0, None))
    data = b""
    while buffers := wire.session.take(wire.now_s):
        data += frame_bytes(buffers)
    rid = int.from_bytes(data[8:16], "little")
    whole = many_results(rid, x)
    wire.reply(whole)
    assert np.array_equal(call.collected.output, x)
    again = wire.many(x, ModelKey("wide", 0, None))
    while buffers := wire.session.take(wire.now_s):
        rid = int.from_bytes(bytes(buffers[0])[8:16], "little")
    whole = many_results(rid, x)
    view = memoryview(whole)
    used = wire.session.receive(view[:1000], wire.now_s)
    assert used == 32
    body = wire.session.body
    assert body is not None
    assert body.outputs is not None
    assert np.shares_memory(again.collected.output, body.outputs[0])
    assert body.fill_from(view[32:]) == len(whole) - 32
    wire.session.body_received(len(whole) - 32, wire.now_s)
    assert np.array_equal(again.collected.output, x)


def test_nothing_to_do_is_done_at_once() -> None:
    wire = Wire()
    wire.bound()
    call = wire.many(np.zeros((0, 4), np.float32))
    assert call.done
    assert call.collected.output.shape == (0, 4)
    assert wire.sent() == []


def test_rows_whose_deadline_passed_before_they_could_be_sent_say_so() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(2, 1 << 20))
    call = wire.many(np.ones((3, 4), np.float32), deadline_s=101.0)
    first, second = wire.sent()
    wire.now_s = 102.0
    wire.reply(many_results(first.rid, np.ones((1, 4), np.float32)))
    wire.sent()
    wire.reply(error_frame(second.rid, ErrorCode.DEADLINE_AFTER_EXECUTION))
    assert call.done
    assert call.collected.codes.tolist() == [
        0,
        ErrorCode.DEADLINE_AFTER_EXECUTION,
        ErrorCode.DEADLINE_IN_QUEUE,
    ]


def test_a_signature_that_changes_half_way_leaves_the_rest_unsent() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(2, 1 << 20))
    call = wire.many(np.ones((4, 4), np.float32))
    first, second = wire.sent()
    wire.reply(error_frame(first.rid, ErrorCode.SIGNATURE_CHANGED))
    (bind,) = [event for event in wire.sent() if isinstance(event, Bind)]
    wire.reply(bound_frame(bind.rid, bind.handle, WIDE), error_frame(second.rid, ErrorCode.SIGNATURE_CHANGED))
    assert call.done
    errors = [failure.error for failure in call.collected.failures]
    assert {type(error) for error in errors} == {SignatureChanged, NotSent}
