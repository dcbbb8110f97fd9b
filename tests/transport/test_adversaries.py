"""Clients that do what no well-meaning client does: each tries to get around one check."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, Wire, infer, row
from trioserve.transport._gather import MAX_GATHERS
from trioserve_protocol import (
    ErrorCode,
    Flag,
    FrameType,
    PeerLimits,
    Result,
    ResultMany,
    Tag,
    admin_frame,
    bind_frame,
    frame,
    frame_bytes,
    tlv,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def test_what_an_infer_many_may_an_infer_of_the_same_shape_may_not(wire: Wire) -> None:
    rows = np.ones((20, 65_536), np.float32)
    meta = tlv(Tag.MODEL, "blob")
    wire.send(infer(1, rows, handle=0, rows=20, meta=meta, many=True))
    left = 20
    while left:
        event = wire.receive()
        assert isinstance(event, ResultMany), event
        left -= event.rows
    wire.send(infer(100, rows, handle=0, rows=20, meta=meta))
    wire.expect_error(ErrorCode.TOO_MANY_ROWS, 100)


def test_nothing_is_sent_to_a_client_that_wants_no_reply_not_even_timing(wire: Wire) -> None:
    wire.bind("scale").send(infer(1, row(1), flags=int(Flag.NOREPLY | Flag.SAMPLED)))
    event = wire.receive()
    assert isinstance(event, Result)
    assert (event.meta, bytes(event.payload)) == (b"", b"")


@pytest.mark.parametrize(
    "text", [b"[" * 60_000, b'{"op": ' * 8_000, b'{"op": "\xff"}'], ids=["lists", "objects", "utf8"]
)
def test_an_admin_call_that_breaks_the_json_reader(wire: Wire, text: bytes) -> None:
    wire.send(admin_frame(1, text))
    wire.expect_error(ErrorCode.INVALID_ARGUMENT, 1)


def test_the_deadline_counts_from_the_first_byte_of_a_frame(wire: Wire) -> None:
    wire.bind("slow")
    request = infer(1, row(1), timeout_us=50_000)
    wire.send(request[:40])
    time.sleep(0.1)
    wire.send(request[40:])
    wire.expect_error(ErrorCode.DEADLINE_IN_QUEUE, 1)


def test_more_handles_than_are_gathered_are_served_all_the_same(wire: Wire) -> None:
    for handle in range(1, MAX_GATHERS + 8):
        wire.bind("scale", handle)
        for rid in range(6 * handle, 6 * handle + 6):
            wire.send(infer(rid, row(rid), handle=handle))
            assert wire.result(rid)[0] == 2 * rid
        wire.send(frame_bytes(frame(FrameType.UNBIND, rid=1 << 40, handle=handle)))
        wire.receive()


def test_a_bind_that_is_refused_unread_leaves_its_handle_unbound_too(wire: Wire) -> None:
    wire.bind("scale")
    bad = bytearray(bind_frame(9, 1, "echo"))
    bad[18] |= int(Flag.SAMPLED) & 0xFF
    bad[19] |= int(Flag.SAMPLED) >> 8
    wire.send(bytes(bad), infer(1, row(1)))
    wire.expect_error(ErrorCode.UNKNOWN_FLAG, 9)
    wire.expect_error(ErrorCode.HANDLE_NOT_BOUND, 1)


def test_a_refused_control_frame_does_not_end_the_request_of_its_id(wire: Wire) -> None:
    wire.bind("slow").send(infer(7, row(30)), frame_bytes(frame(0x7F, rid=7)))
    wire.expect_error(ErrorCode.UNKNOWN_TYPE, 0)
    assert wire.result(7)[0] == 30


def test_timing_is_left_out_where_the_client_takes_no_more_than_the_result(wire: Wire) -> None:
    limits = tlv(Tag.LIMITS, PeerLimits(max_frame_nbytes=64).encode())
    wire.send(frame_bytes(frame(FrameType.HELLO, rid=1, meta=limits)))
    wire.receive()
    wire.send(infer(2, row(1), handle=0, meta=tlv(Tag.MODEL, "scale"), flags=int(Flag.SAMPLED)))
    event = wire.receive()
    assert isinstance(event, Result)
    assert (event.meta, len(event.payload)) == (b"", 16)
