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
    Result,
    ResultMany,
    Tag,
    admin_frame,
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
