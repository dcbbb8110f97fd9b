"""How calls become frames: handles, cancelling, credit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.client.fake_server import LENGTHS, SCALE, WIDE, decode_inputs
from tests.client.wire import KEY, ROW, Wire, result
from trioserve.client._calls import ModelKey
from trioserve.client._failures import ClientClosed
from trioserve.errors import (
    DeadlineInQueue,
    InvalidDtype,
    InvalidShape,
    ModelNotFound,
)
from trioserve_protocol import (
    Bind,
    Cancel,
    ErrorCode,
    Infer,
    PeerLimits,
    bound_frame,
    check_request,
    credit_frame,
    error_frame,
    frame_bytes,
    parse_request_meta,
)


def test_bind_and_the_first_request_go_in_one_write_and_later_ones_need_no_meta() -> None:
    wire = Wire()
    first = wire.infer()
    bind, infer = wire.sent()
    assert isinstance(bind, Bind)
    assert (bind.model, bind.handle) == ("scale", infer.handle)
    assert check_request(SCALE, infer.rows, len(infer.payload), infer.meta) is None
    assert parse_request_meta(infer.meta, bound=True).tensors[0].dims == (1, 4)
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE), result(infer.rid, [ROW * 2]))
    assert first.inference.output.tolist() == [0, 2, 4, 6]
    wire.infer()
    (again,) = wire.sent()
    assert again.meta == b""
    assert again.handle == bind.handle
    assert again.rid > infer.rid > bind.rid


def test_many_first_requests_share_one_bind() -> None:
    wire = Wire()
    for _ in range(3):
        wire.infer()
    assert [type(event) for event in wire.sent()] == [Bind, Infer, Infer, Infer]


def test_a_wrong_guess_is_sent_again_and_its_refusal_is_not_shown() -> None:
    wire = Wire()
    call = wire.infer(np.arange(4, dtype=np.float64))
    bind, wrong = wire.sent()
    assert check_request(SCALE, wrong.rows, len(wrong.payload), wrong.meta).code is ErrorCode.INVALID_DTYPE
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE), error_frame(wrong.rid, ErrorCode.INVALID_DTYPE))
    (right,) = wire.sent()
    assert right.meta == b""
    assert decode_inputs(SCALE, 1, right.payload)[0].tolist() == [[0, 1, 2, 3]]
    assert not call.done
    wire.reply(result(right.rid, [ROW]))
    assert call.error is None
    assert wire.idle


def test_a_signature_of_an_earlier_connection_makes_the_guess_right() -> None:
    wire = Wire(scale=SCALE)
    wire.infer([1, 2, 3, 4])
    _, infer = wire.sent()
    assert infer.meta
    assert check_request(SCALE, infer.rows, len(infer.payload), infer.meta) is None


def test_a_signature_that_changed_meanwhile_decides() -> None:
    wire = Wire(scale=WIDE)
    call = wire.infer([1, 2, 3, 4])
    (bind,) = wire.sent()
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE))
    (infer,) = wire.sent()
    assert not infer.meta
    assert not call.done


@pytest.mark.parametrize("inputs", [[1, 2, 3, 4], np.zeros((400, 4), np.float64)[::2]])
def test_what_cannot_be_guessed_waits_for_the_signature(inputs: Any) -> None:
    wire = Wire()
    wire.infer(inputs)
    (bind,) = wire.sent()
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE))
    assert all(isinstance(event, Infer) for event in wire.sent())


def test_a_large_first_request_waits_for_the_signature() -> None:
    wire = Wire()
    wire.infer(np.zeros((2, 50_000), np.float32), ModelKey("wide", 0, None))
    (bind,) = wire.sent()
    wire.reply(bound_frame(bind.rid, bind.handle, WIDE))
    buffers = wire.session.take(wire.now_s)
    assert sum(map(len, buffers)) == 32 + 400_000


def test_a_failed_bind_is_the_error_of_all_that_waited_for_it() -> None:
    wire = Wire()
    guessed, waiting = wire.infer(), wire.infer([1, 2, 3, 4])
    bind, infer = wire.sent()
    wire.reply(error_frame(bind.rid, ErrorCode.MODEL_NOT_FOUND, "no model"))
    assert isinstance(guessed.error, ModelNotFound)
    assert isinstance(waiting.error, ModelNotFound)
    assert guessed.error is not waiting.error
    wire.reply(error_frame(infer.rid, ErrorCode.HANDLE_NOT_BOUND))
    assert wire.idle
    wire.infer()
    assert isinstance(wire.sent()[0], Bind)


def test_inputs_that_do_not_fit_fail_without_being_sent() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer(np.zeros(5, np.float32))
    assert isinstance(call.error, InvalidShape)
    assert wire.sent() == []


def test_inputs_that_turn_out_not_to_fit_fail_when_the_signature_is_known() -> None:
    wire = Wire()
    call = wire.infer(np.zeros(4, np.complex64))
    (bind,) = wire.sent()
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE))
    assert isinstance(call.error, InvalidDtype)
    guessed = Wire()
    call = guessed.infer(np.zeros((2, 7), np.float32))
    bind, infer = guessed.sent()
    guessed.reply(bound_frame(bind.rid, bind.handle, SCALE))
    assert isinstance(call.error, InvalidShape)
    guessed.reply(error_frame(infer.rid, ErrorCode.INVALID_SHAPE))
    assert guessed.idle


def test_tenants_and_versions_have_handles_of_their_own() -> None:
    wire = Wire()
    for key in (KEY, ModelKey("scale", 2, None), ModelKey("scale", 0, "acme")):
        wire.infer(key=key)
    binds = [event for event in wire.sent() if isinstance(event, Bind)]
    assert [(bind.version, bind.tenant) for bind in binds] == [(0, None), (2, None), (0, "acme")]
    assert len({bind.handle for bind in binds}) == 3


def test_a_changed_signature_is_bound_anew_and_the_request_goes_again_once() -> None:
    wire = Wire()
    wire.bound()
    call, queued = wire.infer(), wire.infer([[1, 2, 3, 4]])
    first, second = wire.sent()
    wire.reply(
        error_frame(first.rid, ErrorCode.SIGNATURE_CHANGED),
        error_frame(second.rid, ErrorCode.SIGNATURE_CHANGED),
    )
    bind, *guesses = wire.sent()
    assert isinstance(bind, Bind)
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE))
    again = [*guesses, *wire.sent()]
    assert len(again) == 2
    wire.reply(error_frame(again[0].rid, ErrorCode.SIGNATURE_CHANGED), result(again[1].rid, [ROW]))
    assert sorted([call.error is None, queued.error is None]) == [False, True]


def test_a_queued_request_whose_handle_is_gone_binds_again() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(1, 1 << 20))
    failing, queued = wire.infer(), wire.infer()
    (first,) = wire.sent()
    wire.reply(error_frame(first.rid, ErrorCode.SIGNATURE_CHANGED))
    bind, again = wire.sent()
    assert isinstance(bind, Bind)
    assert again.meta
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE), result(again.rid, [ROW]))
    (last,) = wire.sent()
    wire.reply(result(last.rid, [ROW]))
    assert failing.error is queued.error is None


def test_the_oldest_handle_is_given_anew_when_the_server_keeps_no_more() -> None:
    wire = Wire(welcome=PeerLimits(max_binds=1))
    wire.bound()
    wire.reply(credit_frame(1, 1 << 20))
    wire.infer()
    queued = wire.infer()
    (first,) = wire.sent()
    other = wire.infer(key=ModelKey("other", 0, None))
    (bind,) = wire.sent()
    assert (bind.model, bind.handle) == ("other", 1)
    wire.reply(bound_frame(bind.rid, 1, SCALE), result(first.rid, [ROW]))
    bind, guess = wire.sent()
    assert (bind.model, bind.handle) == ("scale", 1)
    wire.reply(bound_frame(bind.rid, 1, SCALE), result(guess.rid, [ROW]))
    assert queued.error is None
    assert queued.inference is not None
    bind, guess = wire.sent()
    assert bind.model == "other"
    wire.reply(bound_frame(bind.rid, 1, SCALE), result(guess.rid, [ROW]))
    assert other.inference is not None


def test_an_abandoned_request_is_cancelled_and_its_late_reply_dropped() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer()
    (infer,) = wire.sent()
    wire.session.abandon(call)
    assert wire.sent() == [Cancel(infer.rid, 1)]
    assert not wire.idle
    wire.reply(result(infer.rid, [ROW]))
    assert call.inference is None
    assert wire.idle


def test_a_request_that_was_not_sent_needs_no_cancel() -> None:
    wire = Wire()
    wire.bound()
    wire.session.abandon(wire.infer())
    assert wire.sent() == []
    assert wire.idle


def test_a_large_late_result_is_skipped() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    x = np.zeros(50_000, np.float32)
    call = wire.infer(x, ModelKey("wide", 0, None))
    rid = int.from_bytes(frame_bytes(wire.session.take(wire.now_s))[8:16], "little")
    wire.session.abandon(call)
    whole = result(rid, x[None])
    wire.reply(whole[:50_000])
    assert wire.session.body is None
    wire.reply(whole[50_000:])
    wire.infer()
    assert wire.sent()


def test_a_result_abandoned_in_the_middle_of_its_body_is_dropped() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    x = np.zeros(50_000, np.float32)
    call = wire.infer(x, ModelKey("wide", 0, None))
    rid = int.from_bytes(frame_bytes(wire.session.take(wire.now_s))[8:16], "little")
    whole = result(rid, x[None])
    wire.session.receive(memoryview(whole)[:32], wire.now_s)
    body = wire.session.body
    wire.session.abandon(call)
    taken = body.fill_from(memoryview(whole)[32:])
    wire.session.body_received(taken, wire.now_s)
    assert call.inference is None
    assert wire.idle


def test_consecutive_ids_of_one_call_are_cancelled_by_one_frame() -> None:
    wire = Wire()
    wire.bound(LENGTHS, "lengths")
    call = wire.many(["a"] * 5, ModelKey("lengths", 0, None))
    infers = wire.sent()
    wire.reply(result(infers[2].rid, np.array([1], np.int32)))
    wire.session.abandon(call)
    assert wire.sent() == [Cancel(infers[0].rid, 2), Cancel(infers[3].rid, 2)]


def test_closing_cancels_everything_and_sends_nothing_after_that() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer()
    wire.sent()
    queued = wire.infer()
    wire.session.close(ClientClosed())
    assert wire.sent() == [Cancel(0, 1)]
    assert isinstance(call.error, ClientClosed)
    assert isinstance(queued.error, ClientClosed)
    late = wire.infer()
    assert isinstance(late.error, ClientClosed)
    assert wire.sent() == []


def test_calls_wait_for_credit_in_order() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(2, 1 << 20))
    calls = [wire.infer() for _ in range(4)]
    first = wire.sent()
    assert len(first) == 2
    wire.session.abandon(calls[2])
    wire.reply(result(first[1].rid, [ROW]))
    (next_one,) = wire.sent()
    wire.reply(result(next_one.rid, [ROW * 3]))
    assert calls[3].inference.output[1] == 3
    assert not calls[0].done


def test_the_window_counts_bytes_too_but_an_idle_connection_may_send_one_frame() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    wire.reply(credit_frame(256, 1024))
    for _ in range(2):
        wire.infer(np.zeros(50_000, np.float32), ModelKey("wide", 0, None))
    data = frame_bytes(wire.session.take(wire.now_s))
    assert len(data) == 200_032
    assert wire.session.take(wire.now_s) == []
    wire.reply(error_frame(int.from_bytes(data[8:16], "little"), ErrorCode.SHED))
    assert wire.session.take(wire.now_s)


def test_a_deadline_that_passes_while_waiting_for_credit_ends_the_call() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(1, 1 << 20))
    wire.infer()
    late = wire.infer(deadline_s=101.0)
    (first,) = wire.sent()
    wire.now_s = 102.0
    wire.reply(result(first.rid, [ROW]))
    assert wire.sent() == []
    assert isinstance(late.error, DeadlineInQueue)


def test_welcome_tells_the_window() -> None:
    wire = Wire(welcome=PeerLimits(window_requests=1, window_kib=64))
    wire.bound()
    wire.infer()
    wire.infer()
    assert len(wire.sent()) == 1


def test_a_server_that_does_not_know_hello_is_a_server_all_the_same() -> None:
    wire = Wire(welcome=None)
    wire.reply(error_frame(1, ErrorCode.UNKNOWN_TYPE))
    wire.bound()
    wire.infer()
    assert len(wire.sent()) == 1
