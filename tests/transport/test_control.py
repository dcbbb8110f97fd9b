"""Control frames over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.harness import ServerProcess, Wire, floats, infer, row
from trioserve_protocol import (
    Admin,
    Bound,
    Done,
    Error,
    ErrorCode,
    Feature,
    Features,
    FrameType,
    PeerLimits,
    Pong,
    Tag,
    Welcome,
    admin_frame,
    bind_frame,
    cancel_frame,
    frame,
    frame_bytes,
    ping_frame,
    pong_frame,
    tlv,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def plain(kind: int, *, rid: int, handle: int = 0, flags: int = 0) -> bytes:
    return frame_bytes(frame(kind, rid=rid, handle=handle, flags=flags))


# ---------------------------------------------------------------- HELLO


def hello(*, must: int = 0, may: int = 0, limits: PeerLimits | None = None) -> bytes:
    meta = tlv(Tag.FEATURES, Features(must, may).encode()) + tlv(Tag.TENANT, "someone")
    if limits is not None:
        meta += tlv(Tag.LIMITS, limits.encode())
    return frame_bytes(frame(FrameType.HELLO, rid=3, meta=meta))


def test_welcome_agrees_to_what_both_have_and_states_the_limits(wire: Wire) -> None:
    wire.send(hello(may=Feature.STREAM | Feature.SHM))
    event = wire.receive()
    assert isinstance(event, Welcome)
    assert event.rid == 3
    assert event.features.must == 0
    assert event.limits.window_requests == 256
    assert event.limits.window_kib == 65_536
    assert event.limits.max_frame_nbytes == 64 << 20
    assert event.server is not None
    assert event.server.name == "trioserve"


def test_a_feature_that_must_be_and_is_not_is_refused_and_the_connection_goes_on(wire: Wire) -> None:
    wire.send(hello(must=Feature.STREAM))
    assert "0x2" in wire.expect_error(ErrorCode.UNSUPPORTED_FEATURE, 3).message
    wire.bind("scale")


def test_hello_comes_first_or_not_at_all(wire: Wire) -> None:
    wire.send(ping_frame(1))
    wire.receive()
    wire.send(hello())
    wire.expect_error(ErrorCode.FAILED_PRECONDITION, 3)


def test_a_result_larger_than_the_client_takes_is_refused_before_it_is_computed(wire: Wire) -> None:
    wire.send(hello(limits=PeerLimits(max_frame_nbytes=4096)))
    wire.receive()
    wire.send(bind_frame(5, 1, "blob"))
    assert "4096" in wire.expect_error(ErrorCode.OUT_OF_RANGE, 5).message
    wire.bind("scale", 2)


# ---------------------------------------------------------------- BIND and UNBIND


def test_a_second_bind_replaces_the_first(wire: Wire) -> None:
    wire.send(
        bind_frame(11, 1, "scale"), infer(1, row(5)), bind_frame(12, 1, "echo"), infer(2, row(5))
    )  # fmt: skip
    answers = {event.rid: event for event in wire.receive_many(4)}
    assert isinstance(answers[11], Bound)
    assert isinstance(answers[12], Bound)
    assert floats(answers[1])[0] == 10
    assert floats(answers[2])[0] == 5


def test_a_connection_that_was_gathered_follows_a_new_binding(wire: Wire) -> None:
    wire.bind("scale")
    for rid in range(1, 10):
        wire.send(infer(rid, row(rid)))
        assert wire.result(rid)[0] == 2 * rid
    wire.bind("echo")
    for rid in range(10, 20):
        wire.send(infer(rid, row(rid)))
        assert wire.result(rid)[0] == rid


def test_a_failed_bind_leaves_the_handle_unbound(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(bind_frame(5, 1, "nobody"), infer(1, row(1)))
    assert "echo" in wire.expect_error(ErrorCode.MODEL_NOT_FOUND, 5).message
    wire.expect_error(ErrorCode.HANDLE_NOT_BOUND, 1)


def test_unbind(wire: Wire) -> None:
    wire.bind("scale")
    unbinds = [plain(FrameType.UNBIND, rid=rid, handle=1) for rid in (5, 6)]
    wire.send(infer(1, row(1)), unbinds[0], infer(2, row(1)), unbinds[1])
    answers = {event.rid: event for event in wire.receive_many(4)}
    assert floats(answers[1])[0] == 2
    assert answers[5] == Done(FrameType.UNBIND, 5, 0)
    assert answers[2].code == ErrorCode.HANDLE_NOT_BOUND
    assert answers[6].code == ErrorCode.HANDLE_NOT_BOUND


def test_parameters_for_a_model_that_takes_none(wire: Wire) -> None:
    wire.send(bind_frame(5, 1, "scale", tlv(Tag.PARAMS, b'{"a":1}')))
    wire.expect_error(ErrorCode.UNKNOWN_TLV, 5)
    wire.send(infer(1, row(1)))
    wire.expect_error(ErrorCode.HANDLE_NOT_BOUND, 1)


def test_more_binds_than_allowed(wire: Wire) -> None:
    """In two halves: a second's worth of control frames may be sent at once."""
    wire.send(*(bind_frame(handle, handle, "scale") for handle in range(1, 1025)))
    assert all(isinstance(event, Bound) for event in wire.receive_many(1024))
    wire.send(bind_frame(2000, 1025, "scale"))
    wire.expect_error(ErrorCode.QUOTA_EXCEEDED, 2000)
    wire.send(bind_frame(2001, 7, "scale"))
    assert isinstance(wire.receive(), Bound)


# ---------------------------------------------------------------- PING, CANCEL


def test_ping_also_while_requests_wait_and_inside_nothing_else(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(infer(1, row(80)), ping_frame(9, b"hello"), ping_frame())
    assert wire.receive() == Pong(9, b"hello\0\0\0")
    assert wire.receive() == Pong(0, b"")
    wire.result(1)


def test_a_pong_that_nobody_asked_for_does_no_harm(wire: Wire) -> None:
    wire.send(pong_frame(1, b"x"), ping_frame(2))
    assert wire.receive() == Pong(2, b"")


def test_cancel_answers_at_once_and_only_once(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(infer(1, row(150)))
    wire.expect_silence(0.03)
    wire.send(infer(2, row(0)), infer(3, row(0)), cancel_frame(1, 2), cancel_frame(77))
    assert [wire.expect_error(ErrorCode.CANCELLED_BY_CLIENT).rid for _ in range(2)] == [1, 2]
    wire.result(3)
    wire.send(ping_frame(8))
    assert wire.receive() == Pong(8, b"")


def test_cancel_of_all(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(*(infer(rid, row(40)) for rid in range(1, 61)))
    wire.send(cancel_frame(0))
    ended = {event.rid for event in wire.receive_many(60)}
    assert ended == set(range(1, 61))
    wire.expect_silence()


def test_a_cancelled_request_counts_against_the_window_until_its_memory_is_free(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(*(infer(rid, row(150)) for rid in range(1, 33)))
    wire.expect_silence(0.03)
    wire.send(cancel_frame(0), *(infer(rid, row(0)) for rid in range(101, 401)))
    codes = [event.code for event in wire.receive_many(332) if isinstance(event, Error)]
    assert codes.count(ErrorCode.CANCELLED_BY_CLIENT) == 32
    assert codes.count(ErrorCode.CREDIT_EXCEEDED) == 300 - (256 - 32)


# ---------------------------------------------------------------- ADMIN


def test_admin_health_and_models(wire: Wire) -> None:
    assert wire.admin("health") == {"live": True, "ready": True, "draining": False}
    by_name = {model["name"]: model for model in wire.admin("models")}
    assert by_name["mixed"] == {
        "name": "mixed",
        "version": 1,
        "ready": True,
        "max_rows": 8,
        "inputs": [
            {"name": "a", "dtype": "U8", "dims": [-1, 3]},
            {"name": "b", "dtype": "F32", "dims": [-1, 50_001]},
        ],
        "outputs": [
            {"name": "n", "dtype": "I64", "dims": [-1]},
            {"name": "s", "dtype": "F32", "dims": [-1, 3]},
        ],
    }


def test_admin_statistics_obey_their_sum_rule(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(*(infer(rid, row(1)) for rid in range(1, 301)))
    wire.receive_many(300)
    found = wire.admin("statistics")
    for model in found["models"]:
        errors = sum(model["errors"].values())
        assert model["received"] == model["ok"] + errors + model["in_flight"]
    assert found["connections"]["open"] == 1
    [worker] = found["workers"]
    assert (worker["starts"], worker["ready"], worker["in_flight"]) == (1, True, 0)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"null", b"[]", b'"health"', b"{}", b'{"op": "shutdown"}', b'{"op": ["health"]}',
     b'{"op": {"op": 1}}', b'{"op": 1}', b"\xff\xfe", b'{"op": null}'],
)  # fmt: skip
def test_a_bad_admin_call_is_answered_with_what_is_known(wire: Wire, payload: bytes) -> None:
    wire.send(admin_frame(5, payload))
    message = wire.expect_error(ErrorCode.INVALID_ARGUMENT, 5).message
    assert "health, models, statistics" in message
    wire.send(admin_frame(6, b'{"op": "health"}'))
    answer = wire.receive()
    assert isinstance(answer, Admin)
    assert json.loads(answer.payload)["live"]


# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize(
    "data, code",
    [
        (plain(0x50, rid=5), ErrorCode.UNKNOWN_TYPE),
        (plain(FrameType.RESULT, rid=5), ErrorCode.UNKNOWN_TYPE),
        (plain(FrameType.CREDIT, rid=5), ErrorCode.UNKNOWN_TYPE),
        (plain(FrameType.INFER_PART, rid=5), ErrorCode.UNKNOWN_TYPE),
        (plain(FrameType.SHM_REG, rid=5), ErrorCode.UNKNOWN_TYPE),
        (infer(5, row(1), flags=1 << 2), ErrorCode.UNKNOWN_FLAG),
        (infer(5, row(1), flags=1 << 5), ErrorCode.UNKNOWN_FLAG),
        (infer(5, row(1), flags=1 << 13), ErrorCode.UNKNOWN_FLAG),
        (plain(FrameType.PING, rid=5, flags=1), ErrorCode.UNKNOWN_FLAG),
        (infer(5, row(1), rows=0), ErrorCode.INVALID_META),
        (plain(FrameType.BIND, rid=5, handle=1), ErrorCode.INVALID_META),
        (bind_frame(5, 0, "scale"), ErrorCode.INVALID_META),
        (bind_frame(5, 1, "scale", tlv(Tag.SEQ_ID, bytes(16))), ErrorCode.UNKNOWN_TLV),
        (frame_bytes(frame(FrameType.CANCEL, rid=5, payload=b"12345678")), ErrorCode.INVALID_SIZE),
        (frame_bytes(frame(FrameType.ADMIN, rid=5, payload=bytes(70_000))), ErrorCode.INVALID_SIZE),
    ],
)
def test_what_is_not_known_is_named_and_the_connection_goes_on(
    wire: Wire, data: bytes, code: ErrorCode
) -> None:
    wire.send(data, ping_frame(6))
    assert wire.expect_error(code, 5).message
    assert wire.receive() == Pong(6, b"")


def test_what_may_be_ignored_is(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(frame_bytes(frame(0x85, rid=5, payload=b"anything")), infer(1, row(1), flags=3 << 14))
    assert wire.result(1)[0] == 2
