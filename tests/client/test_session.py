"""The conversation without I/O, against the protocol machine in the server's role."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.client.fake_server import LENGTHS, PAIR, SCALE, WIDE, decode_inputs, encode_outputs
from trioserve.client._calls import ControlCall, DataCall, ModelKey, SignatureCall
from trioserve.client._failures import ClientClosed, ConnectionLost, NotSent
from trioserve.client._infer import InferCall
from trioserve.client._many import ManyCall
from trioserve.client._session import Session
from trioserve.errors import (
    DeadlineInQueue,
    Draining,
    FrameTooLarge,
    InvalidDtype,
    InvalidShape,
    ModelNotFound,
    Shed,
    SignatureChanged,
    TrioserveError,
    Unauthenticated,
)
from trioserve_protocol import (
    Admin,
    Bind,
    Buffer,
    Cancel,
    Connection,
    ErrorCode,
    Event,
    Flag,
    FrameType,
    Hello,
    Infer,
    InferMany,
    InferRun,
    PeerLimits,
    Ping,
    Pong,
    RequestClass,
    Role,
    Signature,
    Tag,
    Timing,
    bound_frame,
    check_request,
    credit_frame,
    error_frame,
    frame,
    frame_bytes,
    goaway_frame,
    infer_flags,
    parse_request_meta,
    ping_frame,
    pong_frame,
    tlv,
)

KEY = ModelKey("scale", 0, None)
ROW = np.arange(4, dtype=np.float32)
NO_LIMITS = PeerLimits()


class Wire:
    """A session and the server that a test plays."""

    def __init__(self, *, welcome: PeerLimits | None = NO_LIMITS, **known: Signature) -> None:
        self.signatures = {ModelKey(name, 0, None): signature for name, signature in known.items()}
        self.session = Session(self.signatures)
        self.server = Connection(Role.SERVER)
        self.now_s = 100.0
        (hello,) = self.sent()
        assert isinstance(hello, Hello)
        if welcome is not None:
            self.reply(frame(FrameType.WELCOME, rid=hello.rid, meta=tlv(Tag.LIMITS, welcome.encode())))

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any call."""
        out = self.session._out
        return not (
            out.flights
            or out._queue
            or out.controls
            or out.flights.credit.requests
            or out.flights.credit.nbytes
        )

    def sent(self) -> list[Event]:
        """What the client sends now, as a server sees it; runs as single events."""
        data = b""
        while buffers := self.session.take(self.now_s):
            data += frame_bytes(buffers)
        events, used = self.server.receive(memoryview(data))
        assert used == len(data)
        return [one for event in events for one in _singles(event)]

    def reply(self, *frames: bytes | list[Buffer]) -> None:
        data = b"".join(part if isinstance(part, bytes) else frame_bytes(part) for part in frames)
        view = memoryview(bytearray(data))
        while view:
            used = self.session.receive(view, self.now_s)
            view = view[used:]
            body = self.session.body
            if body is not None:
                taken = body.fill_from(view)
                view = view[taken:]
                self.session.body_received(taken, self.now_s)
            elif not used:
                break
        assert not view

    def infer(self, inputs: Any = ROW, key: ModelKey = KEY, **options: Any) -> InferCall:
        call = InferCall(
            key, inputs, deadline_s=options.pop("deadline_s", math.inf), on_done=lambda: None, **options
        )
        self.session.submit(call)
        return call

    def many(self, inputs: Any, key: ModelKey = KEY, **options: Any) -> ManyCall:
        call = ManyCall(
            key, inputs, deadline_s=options.pop("deadline_s", math.inf), on_done=lambda: None, **options
        )
        self.session.submit(call)
        return call

    def bound(self, signature: Signature = SCALE, name: str = "scale") -> None:
        """Bind a model the short way."""
        self.session.submit(SignatureCall(ModelKey(name, 0, None), lambda: None))
        for event in self.sent():
            assert isinstance(event, Bind)
            self.reply(bound_frame(event.rid, event.handle, signature))


def _singles(event: Event) -> list[Event]:
    if not isinstance(event, InferRun):
        return [event]
    return [
        Infer(
            int(rid),
            event.handle,
            int(flags),
            int(tmo),
            event.rows,
            event.meta,
            memoryview(payload.tobytes()),
        )
        for rid, flags, tmo, payload in zip(
            event.rids, event.flags, event.timeouts_us, event.payload, strict=True
        )
    ]


def result(rid: int, *outputs: Any, **fields: Any) -> bytes:
    arrays = [np.asarray(output) for output in outputs]
    rows = fields.pop("rows", len(arrays[0]))
    kind = fields.pop("kind", FrameType.RESULT)
    return frame_bytes(
        frame(kind, rid=rid, rows=rows, flags=infer_flags(), payload=encode_outputs(arrays), **fields)
    )


def many_results(rid: int, *outputs: Any) -> bytes:
    return result(rid, *outputs, kind=FrameType.RESULT_MANY)


# -- binding -----------------------------------------------------------------------------------------------------------


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


# -- requests ----------------------------------------------------------------------------------------------------------


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


# -- cancelling --------------------------------------------------------------------------------------------------------


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


# -- credit ------------------------------------------------------------------------------------------------------------


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


# -- many --------------------------------------------------------------------------------------------------------------


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
    inputs = {"a": np.arange(9).reshape(3, 3).astype(np.int32), "b": np.array([1, 2, 3], np.uint8)}
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
    singles = [one for event in events for one in _singles(event)]
    assert [decode_inputs(LENGTHS, 1, event.payload)[0][0].decode() for event in singles] == texts
    for event in reversed(singles):
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
    wire.reply_body = wire.session.body.fill_from(view[32:])
    assert np.shares_memory(again.collected.output, wire.session.body.outputs[0])
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


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_lost_connection_tells_what_was_in_flight_and_what_was_not() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(3, 1 << 20))
    call = wire.infer()
    many = wire.many(np.ones((5, 4), np.float32))
    infer, first, second = wire.sent()
    waiting = wire.infer(np.zeros(4, np.float32), ModelKey("other", 0, None))
    ping = ControlCall(lambda: None)
    wire.session.ping(ping)
    wire.reply(many_results(first.rid, np.ones((1, 4), np.float32)))
    wire.session.lost(ConnectionLost("gone"))
    assert isinstance(call.error, ConnectionLost)
    assert isinstance(waiting.error, NotSent)
    assert isinstance(ping.error, ConnectionLost)
    kinds = {failure.first: type(failure.error) for failure in many.collected.failures}
    assert kinds == {second.rid - first.rid: ConnectionLost, 2: NotSent}
    assert not wire.session.usable
    assert wire.sent() == []
    assert infer.rid


def test_goaway_counts_what_was_taken_and_the_rest_is_safe_to_send_elsewhere() -> None:
    wire = Wire()
    wire.bound()
    wire.reply(credit_frame(16, 1 << 20))
    kept = wire.infer()
    many = wire.many(np.ones((8, 4), np.float32))
    after = wire.infer()
    infer, chunk, last = wire.sent()
    wire.reply(credit_frame(1, 1 << 20))
    queued = wire.infer()
    wire.reply(goaway_frame(9, "restart"))
    assert not wire.session.usable
    assert isinstance(after.error, NotSent)
    assert isinstance(queued.error, NotSent)
    assert after.error.message == "restart"
    assert not kept.done
    wire.reply(error_frame(last.rid, ErrorCode.DRAINING), result(infer.rid, [ROW]))
    wire.reply(many_results(chunk.rid, np.ones((8, 4), np.float32)))
    assert kept.inference is not None
    assert many.collected.ok.all()
    assert wire.idle


def test_goaway_in_the_middle_of_a_bind_keeps_what_was_taken() -> None:
    wire = Wire()
    right, wrong = wire.infer(), wire.infer(ROW.astype(np.float64))
    bind, infer, refused = wire.sent()
    wire.reply(goaway_frame(2), bound_frame(bind.rid, bind.handle, SCALE), result(infer.rid, [ROW]))
    wire.reply(error_frame(refused.rid, ErrorCode.INVALID_DTYPE))
    assert right.inference is not None
    assert isinstance(wrong.error, NotSent)


def test_a_server_that_drains_gets_no_more_calls() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer()
    (infer,) = wire.sent()
    wire.reply(error_frame(infer.rid, ErrorCode.DRAINING))
    assert isinstance(call.error, Draining)
    assert not wire.session.usable


@pytest.mark.parametrize("code", [ErrorCode.TOO_MANY_CONNECTIONS, ErrorCode.UNAUTHENTICATED])
def test_why_the_server_closes_is_the_error_of_what_was_in_flight(code: ErrorCode) -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer()
    wire.sent()
    waiting = wire.infer()
    wire.reply(error_frame(0, code, "because"))
    assert not wire.session.usable
    assert not call.done
    assert isinstance(waiting.error, NotSent if code.retryable else Unauthenticated)
    wire.session.lost(ConnectionLost("end of stream"))
    assert (call.error.code, call.error.message) == (code, "because")


def test_an_error_of_the_connection_ends_no_request() -> None:
    wire = Wire()
    wire.bound()
    call, other = wire.infer(), wire.infer()
    infer, _ = wire.sent()
    wire.reply(error_frame(0, ErrorCode.DEADLINE_EXCEEDED, "too slow"), result(infer.rid, [ROW]))
    assert call.inference is not None
    assert not other.done
    wire.session.lost(ConnectionLost("end of stream"))
    assert isinstance(other.error, ConnectionLost)
    assert other.error.message == "the server gave up: too slow"


def test_a_drained_connection_is_over_when_all_is_answered() -> None:
    wire = Wire()
    wire.bound()
    call = wire.infer()
    (infer,) = wire.sent()
    wire.reply(goaway_frame(1))
    assert not wire.session.over
    wire.reply(result(infer.rid, [ROW]))
    assert wire.session.over
    assert call.inference is not None


BREACHES: dict[str, Callable[[int, int], bytes]] = {
    "garbage": lambda rid, bind: b"HTTP/1.1 400 Bad Request\r\n\r\n        ",
    "a result of an unknown id": lambda rid, bind: result(rid + 50, [ROW]),
    "two results": lambda rid, bind: result(rid, [ROW]) + result(rid, [ROW]),
    "wrong size": lambda rid, bind: result(rid, [ROW[:2]], rows=1),
    "wrong rows": lambda rid, bind: result(rid, [ROW, ROW]),
    "many results of one": lambda rid, bind: many_results(rid, [ROW, ROW]),
    "a pong to a request": lambda rid, bind: pong_frame(rid),
    "an answer to nothing": lambda rid, bind: pong_frame(rid + 50),
    "admin without a question": lambda rid, bind: frame_bytes(
        frame(FrameType.ADMIN, rid=9999, payload=b"{}")
    ),
    "a second bound": lambda rid, bind: bound_frame(bind, 1, SCALE),
    "an unbind that nobody asked for": lambda rid, bind: frame_bytes(frame(FrameType.UNBIND, rid=rid)),
    "bad meta": lambda rid, bind: result(rid, [ROW], meta=tlv(Tag.MODEL, "x")),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_server_that_breaks_the_protocol_is_left(name: str) -> None:
    wire = Wire()
    wire.session.submit(SignatureCall(KEY, lambda: None))
    (bind,) = wire.sent()
    wire.reply(bound_frame(bind.rid, bind.handle, SCALE))
    call, other = wire.infer(), wire.infer()
    infer, _ = wire.sent()
    wire.reply(BREACHES[name](infer.rid, bind.rid))
    assert wire.session.ended is not None
    assert "broke the protocol" in wire.session.ended.message
    assert isinstance(other.error, ConnectionLost)
    assert call.done
    assert wire.session.receive(memoryview(b"more"), wire.now_s) == 4


def test_a_large_result_that_does_not_fit_is_a_breach_before_its_body_comes() -> None:
    wire = Wire()
    wire.bound(WIDE, "wide")
    call = wire.infer(np.zeros(50_000, np.float32), ModelKey("wide", 0, None))
    rid = int.from_bytes(frame_bytes(wire.session.take(wire.now_s))[8:16], "little")
    wire.session.receive(memoryview(result(rid, np.zeros((2, 50_000), np.float32)))[:32], wire.now_s)
    assert isinstance(call.error, ConnectionLost)


def test_a_result_before_its_bound_is_a_breach() -> None:
    wire = Wire()
    call = wire.infer()
    _, infer = wire.sent()
    wire.reply(result(infer.rid, [ROW]))
    assert isinstance(call.error, TrioserveError)
    assert wire.session.ended is not None


def test_a_refused_reply_ends_its_request_only() -> None:
    wire = Wire()
    wire.bound()
    call, other = wire.infer(), wire.infer()
    infer, second = wire.sent()
    partial = frame_bytes(frame(FrameType.PARTIAL, rid=infer.rid, rows=1, payload=bytes(16)))
    wire.reply(partial, partial, result(second.rid, [ROW]))
    assert call.error.code is ErrorCode.UNKNOWN_TYPE
    assert other.inference is not None


# -- control -----------------------------------------------------------------------------------------------------------


def test_pings_are_answered_both_ways() -> None:
    wire = Wire()
    wire.reply(ping_frame(77, b"12345678"))
    assert wire.sent() == [Pong(77, b"12345678")]
    call = ControlCall(lambda: None)
    wire.session.ping(call)
    (ping,) = wire.sent()
    assert isinstance(ping, Ping)
    wire.now_s += 1
    wire.reply(pong_frame(ping.rid, ping.payload))
    assert call.ended_s == 101.0


def test_a_flood_of_pings_ends_the_connection() -> None:
    wire = Wire()
    wire.reply(*[ping_frame(index) for index in range(1100)])
    assert wire.session.ended is not None


def test_admin_is_json_both_ways_and_may_fail() -> None:
    wire = Wire()
    good, bad = ControlCall(lambda: None), ControlCall(lambda: None)
    wire.session.admin(good, b'{"op":"models"}')
    wire.session.admin(bad, b'{"op":"nonsense"}')
    first, second = wire.sent()
    assert isinstance(first, Admin)
    wire.reply(
        frame(FrameType.ADMIN, rid=first.rid, payload=b'{"models":[]}'),
        frame(FrameType.ADMIN, rid=second.rid, handle=ErrorCode.INVALID_ARGUMENT, payload=b"no such op"),
    )
    assert good.answer == b'{"models":[]}'
    assert bad.error.code is ErrorCode.INVALID_ARGUMENT
    assert bad.error.message == "no such op"


def test_an_answer_that_is_refused_ends_its_question() -> None:
    wire = Wire()
    call = ControlCall(lambda: None)
    wire.session.ping(call)
    (ping,) = wire.sent()
    wire.reply(frame(FrameType.PONG, rid=ping.rid, flags=int(Flag.SHM)))
    assert call.error.code is ErrorCode.UNKNOWN_FLAG


def test_control_calls_on_a_dead_connection_fail_at_once() -> None:
    wire = Wire()
    wire.session.lost(ConnectionLost("gone"))
    call = ControlCall(lambda: None)
    wire.session.ping(call)
    assert isinstance(call.error, NotSent)


def test_a_known_signature_is_answered_without_the_server() -> None:
    wire = Wire()
    wire.bound()
    call = SignatureCall(KEY, lambda: None)
    wire.session.submit(call)
    assert call.signature == SCALE
    assert wire.sent() == []


@pytest.mark.parametrize("kind", [DataCall])
def test_the_outline_of_a_call_does_nothing(kind: type[DataCall]) -> None:
    call = kind(KEY, math.inf, 0, lambda: None)
    call.guess(None)
    assert not call.ready
    assert not call.restart()
