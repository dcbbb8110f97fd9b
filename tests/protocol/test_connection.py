import zlib

import pytest

from tests.protocol.frames import END, build, events_of, infer
from trioserve_protocol import (
    Admin,
    Bind,
    Cancel,
    Connection,
    ErrorCode,
    FatalError,
    Feature,
    Flag,
    FrameError,
    FrameType,
    Hello,
    Infer,
    InferPart,
    InferRun,
    Limits,
    LocalProtocolError,
    Ping,
    Role,
    Tag,
    admin_frame,
    bind_frame,
    cancel_frame,
    ping_frame,
    tlv,
)

SMALL = Limits(
    max_frame_nbytes=1 << 20, max_meta_nbytes=4096, max_control_nbytes=512, max_admin_reply_nbytes=1024
)


def server(data: bytes, **options: object) -> list[object]:
    return events_of([data], Role.SERVER, **options)  # type: ignore[arg-type]


def client(data: bytes, **options: object) -> list[object]:
    return events_of([data], Role.CLIENT, **options)  # type: ignore[arg-type]


def refusal(data: bytes, **options: object) -> tuple[ErrorCode, int, int]:
    """The one event of `data` must be a refusal, and the connection must go on after it."""
    first, second = server(data + ping_frame(7), **options)
    assert isinstance(first, FrameError)
    assert second == Ping(7, b"")
    return first.code, first.rid, first.count


# -- whole frames ------------------------------------------------------------------------------------------------


def test_an_infer_is_one_event_with_a_view_of_the_payload() -> None:
    data = memoryview(bytearray(infer(5, b"abcdefgh", timeout_us=9, rows=2)))
    events, used = Connection(Role.SERVER).receive(data)
    assert used == len(data)
    (event,) = events
    assert isinstance(event, Infer)
    assert event[:6] == (5, 1, END, 9, 2, b"")
    data[32:33] = b"X"
    assert bytes(event.payload) == b"Xbcdefgh"


def test_nothing_is_consumed_until_a_frame_is_whole() -> None:
    data = infer()
    connection = Connection(Role.SERVER)
    for length in range(len(data)):
        assert connection.receive(memoryview(data[:length])) == ([], 0)
    assert len(connection.receive(memoryview(data))[0]) == 1


def test_equal_frames_become_a_run_and_a_different_one_ends_it() -> None:
    data = b"".join(infer(rid) for rid in range(1, 11)) + infer(11, bytes(16))
    events, _ = Connection(Role.SERVER, vector_from=4).receive(memoryview(data))
    run, last = events
    assert isinstance(run, InferRun)
    assert run.rids.tolist() == list(range(1, 11))
    assert run.payload.shape == (10, 8)
    assert isinstance(last, Infer)


def test_the_columns_of_a_run_do_not_alias_the_bytes_but_the_payload_does() -> None:
    data = bytearray(b"".join(infer(rid) for rid in range(1, 9)))
    (run,), _ = Connection(Role.SERVER).receive(memoryview(data))
    assert isinstance(run, InferRun)
    data[:] = b"\xff" * len(data)
    assert run.rids.tolist() == list(range(1, 9))
    assert run.timeouts_us.tolist() == [0] * 8
    assert run.payload.min() == 0xFF


def test_max_frames_stops_a_receive_and_more_says_so() -> None:
    data = memoryview(b"".join(infer(rid) for rid in range(1, 21)))
    connection = Connection(Role.SERVER, vector_from=4)
    events, used = connection.receive(data, max_frames=6)
    assert [event.count for event in events] == [6]
    assert connection.more
    events, used_again = connection.receive(data[used:], max_frames=14)
    assert used + used_again == len(data)
    assert not connection.more


def test_max_frames_counts_slow_frames_too() -> None:
    connection = Connection(Role.SERVER)
    events, used = connection.receive(memoryview(ping_frame() * 5), max_frames=3)
    assert (len(events), used, connection.more) == (3, 96, True)


# -- fatal errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, code",
    [
        (b"\0" * 32, ErrorCode.UNSUPPORTED_VERSION),
        (b"TS\x02\x10" + bytes(28), ErrorCode.UNSUPPORTED_VERSION),
        (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.UNSUPPORTED_VERSION),
        (b"\x16\x03\x01\x02", ErrorCode.UNSUPPORTED_VERSION),
        (b"TS\x01\x10" + (4).to_bytes(4, "little") + bytes(24), ErrorCode.INVALID_SIZE),
        (b"TS\x01\x10" + (0xFFFFFFF8).to_bytes(4, "little") + bytes(24), ErrorCode.FRAME_TOO_LARGE),
        (b"TS\x01\x10" + bytes(20) + b"\x01\0" + bytes(6), ErrorCode.INVALID_META),
    ],
)
def test_fatal_errors_end_the_connection(data: bytes, code: ErrorCode) -> None:
    connection = Connection(Role.SERVER)
    (event,), used = connection.receive(memoryview(data + b"anything"))
    assert isinstance(event, FatalError)
    assert event.code == code
    assert event.reply
    assert used == len(data) + 8
    with pytest.raises(LocalProtocolError, match="after a fatal error"):
        connection.receive(memoryview(b""))


def test_a_stranger_is_recognised_by_four_bytes() -> None:
    connection = Connection(Role.SERVER)
    assert connection.receive(memoryview(b"GET")) == ([], 0)
    (event,), _ = connection.receive(memoryview(b"GET "))
    assert isinstance(event, FatalError)
    assert b"HTTP/1.1 400" in event.reply


def test_a_stranger_is_recognised_after_a_large_body_too() -> None:
    data = infer(payload=bytes(1024))
    connection = Connection(Role.SERVER, large_nbytes=64)
    connection.receive(memoryview(data[:40]))
    connection.accept_body()
    assert connection.body_received(1024)
    assert connection.receive(memoryview(b"GE")) == ([], 0)
    (event,), _ = connection.receive(memoryview(b"GET "))
    assert isinstance(event, FatalError)


def test_a_client_has_nothing_to_reply_to_a_broken_server() -> None:
    (event,) = client(bytes(32))
    assert isinstance(event, FatalError)
    assert event.reply == b""


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, code, rid, count",
    [
        (infer(0), ErrorCode.INVALID_META, 0, 1),
        (infer(rows=0), ErrorCode.INVALID_META, 1, 1),
        (infer(handle=0), ErrorCode.INVALID_META, 1, 1),
        (infer(flags=0), ErrorCode.UNKNOWN_TYPE, 1, 1),
        (infer(flags=END | 4), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (infer(flags=END | Flag.SHM), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (infer(flags=END | Flag.COMPRESSED), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (infer(flags=END | Flag.SEQ), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (infer(flags=END | 1 << 13), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (infer(flags=END | Flag.CRC, aux=1), ErrorCode.CRC_MISMATCH, 1, 1),
        (infer(meta=bytes(5000)), ErrorCode.INVALID_META, 1, 1),
        (build(0x12, rid=3, handle=1, flags=END, rows=0), ErrorCode.INVALID_META, 3, 1),
        (build(0x12, rid=3, handle=1, flags=0, rows=4), ErrorCode.UNKNOWN_TYPE, 3, 4),
        (build(0x12, rid=0, handle=1, flags=END, rows=4), ErrorCode.INVALID_META, 0, 1),
        (build(0x12, rid=2**64 - 3, handle=1, flags=END, rows=4), ErrorCode.INVALID_META, 2**64 - 3, 1),
        (build(0x11, rid=3, flags=END), ErrorCode.UNKNOWN_TYPE, 3, 1),
        (build(0x20, rid=3, flags=END), ErrorCode.UNKNOWN_TYPE, 3, 1),
        (build(0x44, rid=3), ErrorCode.UNKNOWN_TYPE, 3, 1),
        (build(0x35, rid=3), ErrorCode.UNKNOWN_TYPE, 3, 1),
        (build(0x03, rid=0, handle=1, meta=tlv(1, "m")), ErrorCode.INVALID_META, 0, 1),
        (build(0x03, rid=1, handle=0, meta=tlv(1, "m")), ErrorCode.INVALID_META, 1, 1),
        (build(0x03, rid=1, handle=1), ErrorCode.INVALID_META, 1, 1),
        (build(0x03, rid=1, handle=1, meta=tlv(1, "m"), payload=bytes(8)), ErrorCode.INVALID_SIZE, 1, 1),
        (build(0x03, rid=1, handle=1, meta=tlv(1, "m") + tlv(99, b"")), ErrorCode.UNKNOWN_TLV, 1, 1),
        (build(0x03, rid=1, handle=1, flags=END, meta=tlv(1, "m")), ErrorCode.UNKNOWN_FLAG, 1, 1),
        (build(0x05, rid=1), ErrorCode.INVALID_META, 1, 1),
        (build(0x30, rid=1, payload=bytes(8)), ErrorCode.INVALID_SIZE, 1, 1),
        (build(0x32, payload=bytes(513)), ErrorCode.INVALID_SIZE, 0, 1),
        (build(0x37, payload=b"{}"), ErrorCode.INVALID_META, 0, 1),
    ],
)
def test_refused_frames_are_skipped(data: bytes, code: ErrorCode, rid: int, count: int) -> None:
    assert refusal(data, limits=SMALL) == (code, rid, count)


def test_an_ignorable_type_is_skipped_silently() -> None:
    assert server(build(0x80, rid=1, payload=bytes(64)) + ping_frame(1)) == [Ping(1, b"")]


def test_hello_must_be_the_first_frame() -> None:
    hello = build(FrameType.HELLO, rid=1, meta=tlv(Tag.CLIENT, "test/1"))
    first, second = server(hello + hello)
    assert isinstance(first, Hello)
    assert first.client == "test/1"
    assert isinstance(second, FrameError)
    assert second.code == ErrorCode.FAILED_PRECONDITION


def test_a_refused_frame_larger_than_the_buffer_is_skipped_as_it_comes() -> None:
    data = infer(0, bytes(100_000)) + ping_frame(3)
    connection = Connection(Role.SERVER)
    events, used = connection.receive(memoryview(data[:1000]))
    assert [type(event) for event in events] == [FrameError]
    assert used == 1000
    assert connection.body_remaining == 100_032 - 1000
    assert connection.wanted(0) > 32
    events, used = connection.receive(memoryview(data[1000:2000]))
    assert (events, used) == ([], 1000)
    events, used = connection.receive(memoryview(data[2000:]))
    assert events == [Ping(3, b"")]


def test_features_open_types_and_flags() -> None:
    every = Feature.PARTS | Feature.SHM | Feature.SEQ | Feature.COMPRESS
    data = infer(1, flags=Flag.SEQ) + build(0x11, rid=1, flags=END, timeout_us=1, payload=bytes(8))
    begun, part = server(data, features=every)
    assert isinstance(begun, Infer)
    assert part == InferPart(1, END, 1, bytes(8))  # type: ignore[arg-type]
    (bad,) = server(build(0x11, rid=1, flags=END, payload=bytes(8)), features=every)
    assert isinstance(bad, FrameError)
    (bad,) = server(build(0x11, rid=0, flags=END, timeout_us=1, payload=bytes(8)), features=every)
    assert isinstance(bad, FrameError)


@pytest.mark.parametrize(
    "data, requests",
    [
        (infer(rows=0), 1),
        (build(0x12, rid=2**64 - 3, handle=1, flags=END, rows=4), 4),
        (build(0x12, rid=1, handle=1, flags=END), 1),
        (build(0x05, rid=1), 0),
        (build(0x44, rid=1), 0),
    ],
)
def test_a_refusal_says_how_many_requests_were_in_the_frame(data: bytes, requests: int) -> None:
    (event,) = server(data)
    assert isinstance(event, FrameError)
    assert event.requests == requests


# -- control frames ----------------------------------------------------------------------------------------------


def test_control_frames_become_events() -> None:
    data = bind_frame(1, 2, "echo") + cancel_frame(9, 3) + admin_frame(4, b'{"a":1}') + build(0x30)
    assert server(data) == [
        Bind(1, 2, "echo", 0, None, None),
        Cancel(9, 3),
        Admin(4, 0, b'{"a":1}'),
        Cancel(0, 1),
    ]


def test_a_client_takes_larger_admin_replies_than_a_server() -> None:
    data = admin_frame(1, b"x" * 900)
    assert isinstance(server(data, limits=SMALL)[0], FrameError)
    assert isinstance(client(data, limits=SMALL)[0], Admin)
    assert isinstance(client(admin_frame(1, b"x" * 1025), limits=SMALL)[0], FrameError)


def test_crc_of_a_whole_frame_is_checked() -> None:
    body = tlv(1, "m")
    good = build(0x03, rid=1, handle=1, flags=Flag.CRC, meta=body, aux=zlib.crc32(body))
    assert isinstance(server(good)[0], Bind)
