"""The conversation without I/O, against the protocol machine in the server's role."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.client.fake_server import SCALE, WIDE
from tests.client.wire import KEY, ROW, Wire, many_results, result
from trioserve.client._calls import ControlCall, ModelKey, SignatureCall
from trioserve.client._failures import ConnectionLost, NotSent
from trioserve.errors import (
    Draining,
    TrioserveError,
    Unauthenticated,
)
from trioserve_protocol import (
    Admin,
    ErrorCode,
    Flag,
    FrameType,
    Ping,
    Pong,
    Tag,
    bound_frame,
    credit_frame,
    error_frame,
    frame,
    frame_bytes,
    goaway_frame,
    ping_frame,
    pong_frame,
    tlv,
)


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
