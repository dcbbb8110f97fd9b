import zlib
from typing import Any

import pytest

from tests.protocol.frames import END, build, infer
from trioserve_protocol import (
    Connection,
    Flag,
    FrameType,
    Infer,
    InferBegin,
    Limits,
    LocalProtocolError,
    Ping,
    ResultBegin,
    Role,
    Tag,
    crc_matches,
    ping_frame,
    tlv,
)

SMALL = Limits(
    max_frame_nbytes=1 << 20, max_meta_nbytes=4096, max_control_nbytes=512, max_admin_reply_nbytes=1024
)


def begin(payload_nbytes: int = 1024, *, meta: bytes = b"", **fields: Any) -> tuple[Connection, bytes]:
    return Connection(Role.SERVER, large_nbytes=64), infer(payload=bytes(payload_nbytes), meta=meta, **fields)


def test_a_large_body_is_announced_with_header_and_meta() -> None:
    meta = tlv(Tag.MODEL, "m")
    connection, data = begin(meta=meta, handle=0)
    assert connection.receive(memoryview(data[:40])) == ([], 0)
    assert connection.wanted(40) == len(meta) - 8
    (event,), used = connection.receive(memoryview(data[:60]))
    assert event == InferBegin(FrameType.INFER, 1, 0, END, 0, 1, meta, 1024, None)
    assert used == 32 + len(meta)
    assert connection.body_remaining == 1024


def test_an_accepted_body_is_moved_by_the_caller() -> None:
    connection, data = begin()
    connection.receive(memoryview(data[:50]))
    connection.accept_body()
    assert connection.wanted(18) == 1024
    assert not connection.body_received(18)
    with pytest.raises(LocalProtocolError, match="waits for the caller"):
        connection.receive(memoryview(data))
    with pytest.raises(LocalProtocolError):
        connection.body_received(1007)
    with pytest.raises(LocalProtocolError):
        connection.body_received(-1)
    assert connection.body_received(1006)
    with pytest.raises(LocalProtocolError):
        connection.body_received(0)
    # The next read is short, so that a payload that follows is not read into the receive buffer.
    assert connection.wanted(0) == 32
    assert connection.receive(memoryview(b"TS")) == ([], 0)
    assert connection.wanted(2) == 30
    (event,), _ = connection.receive(memoryview(data[:32]))
    assert isinstance(event, InferBegin)


def test_after_a_small_frame_reads_are_long_again() -> None:
    connection, data = begin()
    connection.receive(memoryview(data[:50]))
    connection.accept_body()
    connection.body_received(1024)
    assert connection.receive(memoryview(ping_frame(1)))[0] == [Ping(1, b"")]
    assert connection.wanted(0) > 1024


def test_a_discarded_body_is_skipped() -> None:
    connection, data = begin()
    _, used = connection.receive(memoryview(data[:50]))
    connection.discard_body()
    assert connection.wanted(0) > 1024
    events, used_again = connection.receive(memoryview(data[used:] + ping_frame(2)))
    assert events == [Ping(2, b"")]
    assert used + used_again == len(data) + 32
    assert connection.wanted(0) > 1024


def test_an_accepted_body_can_still_be_discarded() -> None:
    connection, data = begin()
    connection.receive(memoryview(data[:50]))
    connection.accept_body()
    connection.body_received(18)
    connection.discard_body()
    events, used = connection.receive(memoryview(data[50:] + ping_frame(2)))
    assert events == [Ping(2, b"")]
    assert used == len(data) - 50 + 32


def test_more_does_not_outlive_the_bytes_that_it_spoke_of() -> None:
    connection, data = begin()
    connection.receive(memoryview(data[:50]), max_frames=1)
    assert connection.more
    connection.accept_body()
    connection.body_received(1024)
    assert connection.receive(memoryview(b"TS")) == ([], 0)
    assert not connection.more


def test_decisions_need_a_begin_event() -> None:
    connection = Connection(Role.SERVER)
    with pytest.raises(LocalProtocolError):
        connection.accept_body()
    with pytest.raises(LocalProtocolError):
        connection.discard_body()
    connection, data = begin()
    connection.receive(memoryview(data[:50]))
    with pytest.raises(LocalProtocolError):
        connection.receive(memoryview(data))


def test_a_large_frame_that_is_whole_needs_no_announcement() -> None:
    connection, data = begin()
    (event,), _ = connection.receive(memoryview(data))
    assert isinstance(event, Infer)


def test_the_crc_of_a_large_body_is_the_callers_to_check() -> None:
    payload = bytes(range(256)) * 4
    meta = tlv(Tag.PARAMS, "{}")
    data = infer(payload=payload, meta=meta, flags=END | Flag.CRC, aux=zlib.crc32(meta + payload))
    (event,), _ = Connection(Role.SERVER, large_nbytes=64).receive(memoryview(data[:60]))
    assert isinstance(event, InferBegin)
    assert crc_matches(event, memoryview(payload))
    assert not crc_matches(event, memoryview(payload[:-1] + b"!"))


def test_large_results_are_announced_to_a_client() -> None:
    data = build(0x20, rid=4, flags=END, timeout_us=7, rows=1, aux=3, payload=bytes(1024))
    (event,), used = Connection(Role.CLIENT, large_nbytes=64).receive(memoryview(data[:33]))
    assert event == ResultBegin(FrameType.RESULT, 4, END, 7, 3, 1, b"", 1024, None)
    assert used == 32


def test_pending_bytes_are_bounded() -> None:
    assert Connection(Role.SERVER, SMALL, large_nbytes=64).max_pending_nbytes == 32 + 4096 + 64
    assert Connection(Role.CLIENT, large_nbytes=64).max_pending_nbytes == 32 + (1 << 20)
