"""How connections end: strangers, fatal errors, half-closing, resets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.e2e.harness import END, WAIT_S, Closed, ServerProcess, Wire, infer, row, wait_for
from trioserve_protocol import HEADER, Error, ErrorCode, Result, bind_frame, ping_frame, w0_of

pytestmark = pytest.mark.e2e


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def header(**fields: int) -> bytes:
    """An INFER's header with any number in any field."""
    names = ("w0", "body", "rid", "handle", "flags", "tmo", "meta8", "rows", "aux")
    values = {"w0": w0_of(0x10), "rid": 1, "handle": 1, "flags": END, "rows": 1} | fields
    return HEADER.pack(*(values.get(name, 0) for name in names))


# ---------------------------------------------------------------- fatal errors


@pytest.mark.parametrize(
    "data, code",
    [
        (b"\0" * 32, ErrorCode.UNSUPPORTED_VERSION),
        (b"TS\2\x10" + bytes(28), ErrorCode.UNSUPPORTED_VERSION),
        (header(body=12), ErrorCode.INVALID_SIZE),
        (header(body=0xFFFF_FFF8), ErrorCode.FRAME_TOO_LARGE),
        (header(body=(64 << 20) + 8), ErrorCode.FRAME_TOO_LARGE),
        (header(body=8, meta8=2), ErrorCode.INVALID_META),
    ],
)
def test_a_fatal_error_is_read_before_the_close_whatever_else_was_sent(
    wire: Wire, data: bytes, code: ErrorCode
) -> None:
    """The rest is never read as frames, but it is read: closing with unread bytes would make the kernel take the
    error back.
    """
    wire.send(data + b"x" * 300_000)
    assert wire.expect_error(code, 0).message
    assert not wire.expect_closed()


def test_a_length_too_large_is_refused_from_the_header_without_memory_for_it(
    server: ServerProcess, wire: Wire
) -> None:
    wire.send(ping_frame(1))
    wire.receive()
    before = server.rss_nbytes()
    wire.send(header(body=0xFFFF_FFF8))
    wire.expect_error(ErrorCode.FRAME_TOO_LARGE, 0)
    assert server.rss_nbytes() - before <= 64 << 10
    wire.half_close()
    wire.expect_closed()


def test_requests_in_flight_are_answered_before_a_fatal_error(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(infer(1, row(100)), infer(2, row(100)), b"garbage!")
    codes = [wire.receive() for _ in range(3)]
    assert [(event.rid, event.code) for event in codes] == [
        (1, ErrorCode.CANCELLED_BY_CLIENT),
        (2, ErrorCode.CANCELLED_BY_CLIENT),
        (0, ErrorCode.UNSUPPORTED_VERSION),
    ]
    assert not wire.expect_closed()


def test_frames_before_a_fatal_error_are_served(wire: Wire) -> None:
    wire.send(ping_frame(1), ping_frame(2), b"\1\2\3\4")
    assert [wire.receive().rid for _ in range(2)] == [1, 2]
    wire.expect_error(ErrorCode.UNSUPPORTED_VERSION, 0)


def test_a_refused_client_that_stays_is_closed_after_a_while(wire: Wire) -> None:
    wire.send(b"what?")
    wire.expect_error(ErrorCode.UNSUPPORTED_VERSION, 0)
    wire.expect_closed()
    started = time.monotonic()
    with pytest.raises(ConnectionError):  # noqa: PT012  the second or third write meets the reset
        while time.monotonic() - started < WAIT_S:
            wire.send(b"still here")
            time.sleep(0.05)


# ---------------------------------------------------------------- strangers


def test_http_gets_a_readable_hint(wire: Wire) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
    text = read_to_the_end(wire.sock).decode()
    assert text.startswith("HTTP/1.1 400 ")
    assert "trioserve" in text


def test_tls_gets_an_alert(wire: Wire) -> None:
    wire.send(bytes.fromhex("16030100c8010000c40303") + bytes(190))
    assert read_to_the_end(wire.sock)[:1] == b"\x15"


def read_to_the_end(sock: socket.socket) -> bytes:
    data = b""
    while chunk := sock.recv(4096):
        data += chunk
    return data


# ---------------------------------------------------------------- half-closing


def test_a_half_closed_client_still_gets_its_replies(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(infer(1, row(60)), infer(2, row(0)), ping_frame(3))
    wire.half_close()
    assert {event.rid for event in wire.receive_many(3)} == {1, 2, 3}
    assert not wire.expect_closed()


def test_everything_sent_before_half_closing_is_served_also_over_several_turns(wire: Wire) -> None:
    """Frames that wait in user space when the end of the stream is there to be read."""
    wire.send(*(ping_frame(rid) for rid in range(1, 901)))
    wire.half_close()
    assert [event.rid for event in wire.receive_many(900)] == list(range(1, 901))
    assert not wire.expect_closed()


@pytest.mark.parametrize("at", [1, 20, 33, 40])
def test_half_closing_inside_a_frame_drops_that_frame_only(wire: Wire, at: int) -> None:
    wire.bind("scale")
    wire.send(infer(1, row(1)) + infer(2, row(2))[:at])
    wire.half_close()
    assert wire.result(1)[0] == 2
    assert not wire.expect_closed()


def test_half_closing_inside_a_large_body_cancels_that_request_only(wire: Wire) -> None:
    wire.bind("scale").bind("image", 2)
    wire.send(infer(1, row(1)), infer(2, bytes(602_112), handle=2)[:300_000])
    wire.half_close()
    answers = {event.rid: event for event in wire.receive_many(2)}
    assert isinstance(answers[1], Result)
    assert isinstance(answers[2], Error)
    assert answers[2].code == ErrorCode.CANCELLED_BY_CLIENT
    assert not wire.expect_closed()


# ---------------------------------------------------------------- leaving


def conversation() -> bytes:
    """A bind, requests that wait and run, a run, a large body."""
    return b"".join(
        [
            bind_frame(90, 1, "slow"),
            bind_frame(91, 2, "image"),
            infer(1, row(20)),
            *(infer(rid, row(0)) for rid in range(2, 12)),
            infer(50, bytes(602_112), handle=2),
        ]
    )


OFFSETS = [0, 1, 31, 32, 40, 100, 150, 200, 300, 500, 700, 716, 720, 724, 800, 70_000, 200_000, 602_000]


@pytest.mark.parametrize("politely", [False, True], ids=["reset", "closed"])
@pytest.mark.slow
def test_leaving_at_any_offset_leaves_nothing_behind(server: ServerProcess, politely: bool) -> None:  # noqa: FBT001
    data = conversation()
    for offset in OFFSETS:
        wire = server.connect()
        wire.send(data[:offset])
        if politely:
            wire.sock.close()
        else:
            wire.reset()
    with server.connect() as wire:
        wire.bind("scale")
        wire.send(infer(1, row(1)))
        assert wire.result(1)[0] == 2
    server.assert_at_rest()


def test_leaving_with_requests_queued_running_and_arriving(server: ServerProcess) -> None:
    wires = [server.connect() for _ in range(8)]
    for wire in wires:
        wire.send(conversation()[:-1000])
    wait_for(lambda: sum(model["in_flight"] for model in server.statistics()["models"]) >= 60)
    for wire in wires:
        wire.reset()
    server.assert_at_rest()


def test_a_session_that_comes_after_one_that_left_in_the_middle_of_a_body_is_its_own(
    server: ServerProcess,
) -> None:
    """Session numbers are used again, each by one connection at a time."""
    with server.connect() as leaving:
        leaving.bind("image")
        leaving.send(infer(1, bytes(602_112))[:200_000])
        leaving.expect_silence(0.03)
        leaving.reset()
    server.assert_at_rest()
    wires = [server.connect().bind("slow") for _ in range(4)]
    for number, wire in enumerate(wires):
        wire.send(infer(1, row(20, number)))
    for number, wire in enumerate(wires):
        assert wire.result(1)[1] == number
        wire.expect_silence(0.02)
        wire.sock.close()


def test_an_idle_connection_is_closed_by_its_client_without_ado(server: ServerProcess) -> None:
    before = server.statistics()["connections"]["closed"].get("done", 0)
    with server.connect() as wire:
        wire.half_close()
        with pytest.raises(Closed):
            wire.receive()
    assert server.statistics()["connections"]["closed"]["done"] >= before + 1
