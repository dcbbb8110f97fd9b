"""A client's machine and a server's machine that read each other."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.frames import Driver, cut
from trioserve_protocol import (
    Admin,
    Bind,
    Bound,
    Cancel,
    Connection,
    Credit,
    Done,
    DType,
    Error,
    ErrorCode,
    Feature,
    Features,
    Flag,
    FrameError,
    FrameType,
    GoAway,
    Hello,
    Infer,
    InferMany,
    InferPart,
    Partial,
    PeerLimits,
    Ping,
    Pong,
    Result,
    ResultMany,
    Role,
    ServerId,
    ShmRef,
    ShmReg,
    ShmUnreg,
    Signature,
    Tag,
    TensorSpec,
    Unbind,
    Welcome,
    admin_frame,
    bind_frame,
    bound_frame,
    cancel_frame,
    credit_frame,
    done_frame,
    encode_version,
    error_frame,
    frame,
    frame_bytes,
    goaway_frame,
    infer_flags,
    ping_frame,
    pong_frame,
    tlv,
)

EVERY = Feature.PARTS | Feature.STREAM | Feature.SHM | Feature.SEQ | Feature.COMPRESS
END = int(Flag.END)
X = TensorSpec("x", DType.F32, (-1, 2))
SIGNATURE = Signature((X,), (X,), version=3, max_rows=32)
REGION = tlv(Tag.SHMREF, ShmRef(5, 0xFFFF, 0, 0, 4096).encode())


def data_frame(kind: int, **fields: Any) -> bytes:
    return frame_bytes(frame(kind, **fields))


def echo(event: Any) -> bytes:
    """Answer as a server that echoes would."""
    return ANSWERS[type(event)](event)


ANSWERS: dict[type, Callable[[Any], bytes]] = {
    Hello: lambda e: (
        data_frame(
            FrameType.WELCOME,
            rid=e.rid,
            meta=tlv(Tag.FEATURES, Features(e.features.must, int(EVERY)).encode())
            + tlv(Tag.LIMITS, PeerLimits(window_requests=256).encode())
            + tlv(Tag.SERVER, ServerId(1, 2, "echo").encode()),
        )
        + credit_frame(256, 64 << 20)
    ),
    Bind: lambda e: bound_frame(e.rid, e.handle, SIGNATURE),
    Unbind: lambda e: done_frame(FrameType.UNBIND, e.rid),
    Infer: lambda e: data_frame(
        FrameType.RESULT, rid=e.rid, flags=END, timeout_us=9, rows=e.rows, aux=4, payload=e.payload
    ),
    InferPart: lambda e: data_frame(
        FrameType.PARTIAL, rid=e.rid, flags=e.flags, timeout_us=e.part, rows=1, payload=e.payload
    ),
    InferMany: lambda e: data_frame(
        FrameType.RESULT_MANY, rid=e.rid, flags=END, timeout_us=9, rows=e.rows, aux=4, payload=e.payload
    ),
    Cancel: lambda e: error_frame(e.rid, ErrorCode.CANCELLED_BY_CLIENT, count=e.count),
    Ping: lambda e: pong_frame(e.rid, e.payload),
    Admin: lambda e: admin_frame(e.rid, b'{"ok": true}', status=int(ErrorCode.LOADING)),
    ShmReg: lambda e: done_frame(FrameType.SHM_REG, e.rid),
    ShmUnreg: lambda e: done_frame(FrameType.SHM_UNREG, e.rid, status=int(ErrorCode.REGION_NOT_FOUND)),
    FrameError: lambda e: error_frame(e.rid, e.code, e.message, count=e.count) + goaway_frame(3, "bye"),
}

# What a client sends, what the server's machine makes of it, what the client's machine makes of the answer.
EXCHANGES: list[tuple[bytes, Any, list[Any]]] = [
    (
        data_frame(
            FrameType.HELLO,
            rid=1,
            meta=tlv(Tag.FEATURES, Features(1, 3).encode())
            + tlv(Tag.LIMITS, PeerLimits(1 << 20).encode())
            + tlv(Tag.CLIENT, "t/1")
            + tlv(Tag.TENANT, "a")
            + tlv(Tag.AUTH, b"secret"),
        ),
        Hello(1, Features(1, 3), PeerLimits(1 << 20), "t/1", "a", b"secret"),
        [
            Welcome(1, Features(1, int(EVERY)), PeerLimits(window_requests=256), ServerId(1, 2, "echo")),
            Credit(256, 64 << 20),
        ],
    ),
    (
        bind_frame(2, 7, "m", tlv(Tag.VERSION, encode_version(3)) + tlv(Tag.PARAMS, '{"k":1}')),
        Bind(2, 7, "m", 3, None, {"k": 1}),
        [Bound(2, 7, SIGNATURE)],
    ),
    (
        data_frame(FrameType.INFER, rid=3, handle=7, flags=infer_flags(2), timeout_us=5, rows=2, payload=bytes(16)),
        Infer(3, 7, END | 2, 5, 2, b"", bytes(16)),  # type: ignore[arg-type]
        [Result(3, END, 9, 4, 2, b"", bytes(16))],  # type: ignore[arg-type]
    ),
    (
        data_frame(FrameType.INFER_MANY, rid=4, handle=7, flags=END, rows=2, payload=bytes(900)),
        InferMany(4, 7, END, 0, 2, b"", bytes(904)),  # type: ignore[arg-type]
        [ResultMany(4, END, 9, 4, 2, b"", bytes(904))],  # type: ignore[arg-type]
    ),
    (
        data_frame(FrameType.INFER_PART, rid=6, flags=END, timeout_us=1, payload=bytes(400)),
        InferPart(6, END, 1, bytes(400)),  # type: ignore[arg-type]
        [Partial(6, END, 1, 1, b"", bytes(400))],  # type: ignore[arg-type]
    ),
    (
        cancel_frame(7, 2),
        Cancel(7, 2),
        [Error(7, 2, ErrorCode.CANCELLED_BY_CLIENT, False, None, "")],
    ),
    (ping_frame(8, b"abc"), Ping(8, b"abc" + bytes(5)), [Pong(8, b"abc" + bytes(5))]),
    (admin_frame(9, b"{}"), Admin(9, 0, b"{}"), [Admin(9, ErrorCode.LOADING, b'{"ok": true}')]),
    (data_frame(FrameType.UNBIND, rid=10, handle=7), Unbind(10, 7), [Done(FrameType.UNBIND, 10, 0)]),
    (
        data_frame(FrameType.SHM_REG, rid=11, meta=REGION),
        ShmReg(11, ShmRef(5, 0xFFFF, 0, 0, 4096)),
        [Done(FrameType.SHM_REG, 11, 0)],
    ),
    (
        data_frame(FrameType.SHM_UNREG, rid=12, meta=REGION),
        ShmUnreg(12, 5),
        [Done(FrameType.SHM_UNREG, 12, ErrorCode.REGION_NOT_FOUND)],
    ),
    (
        data_frame(FrameType.SHM_REG, rid=13),
        FrameError(13, ErrorCode.INVALID_META, "not exactly one TLV SHMREF with tensor 0xFFFF", 1),
        [
            Error(
                13, 1, ErrorCode.INVALID_META, False, None, "not exactly one TLV SHMREF with tensor 0xFFFF"
            ),
            GoAway(3, "bye"),
        ],
    ),
]  # fmt: skip


def converse(places_out: list[int], places_back: list[int], large_nbytes: int) -> tuple[list[Any], list[Any]]:
    server = Driver(Connection(Role.SERVER, features=EVERY, large_nbytes=large_nbytes))
    client = Driver(Connection(Role.CLIENT, features=EVERY, large_nbytes=large_nbytes))
    for chunk in cut(b"".join(sent for sent, _, _ in EXCHANGES), places_out):
        answered = len(server.events)
        server.feed(chunk)
        for part in cut(b"".join(echo(event) for event in server.events[answered:]), places_back):
            client.feed(part)
    return server.events, client.events


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 2500), max_size=8),
    st.lists(st.integers(1, 900), max_size=4),
    st.sampled_from([64, 65_536]),
)
def test_both_machines_understand_each_other(
    places_out: list[int], places_back: list[int], large_nbytes: int
) -> None:
    at_server, at_client = converse(places_out, places_back, large_nbytes)
    assert at_server == [wanted for _, wanted, _ in EXCHANGES]
    assert at_client == [event for _, _, answers in EXCHANGES for event in answers]


def test_every_frame_type_is_spoken() -> None:
    sent = {data[3] for data, _, _ in EXCHANGES}
    answered = {0x22, 0x34, 0x31} | {echo(event)[3] for _, event, _ in EXCHANGES}
    assert sent | answered == set(FrameType)


@pytest.mark.parametrize(
    "data",
    [
        data_frame(FrameType.RESULT, rid=0, flags=END, rows=1),
        data_frame(FrameType.RESULT, rid=1, rows=1),
        data_frame(FrameType.RESULT, rid=1, handle=3, flags=END, rows=1),
        data_frame(FrameType.RESULT_MANY, rid=1, flags=END, rows=0),
        data_frame(FrameType.RESULT_MANY, rid=2**64 - 1, flags=END, rows=2),
        data_frame(FrameType.PARTIAL, rid=0, rows=1),
        data_frame(FrameType.ERROR, rid=1, handle=3, rows=1),
        data_frame(FrameType.ERROR, rid=1, handle=0, flags=END, rows=1),
        data_frame(FrameType.ERROR, rid=1, handle=0x0100, flags=END, rows=1),
        data_frame(FrameType.ERROR, rid=1, handle=3, flags=END, rows=0),
        data_frame(FrameType.ERROR, rid=2**64 - 1, handle=3, flags=END, rows=2),
        data_frame(FrameType.BOUND, rid=1, handle=1),
        data_frame(FrameType.BOUND, rid=1, meta=tlv(Tag.SIGNATURE, SIGNATURE.encode())),
        data_frame(FrameType.CREDIT, flags=int(Flag.CRC)),
        data_frame(FrameType.UNBIND, rid=0),
        data_frame(FrameType.INFER, rid=1, handle=1, flags=END, rows=1),
    ],
)
def test_a_client_refuses_what_a_server_must_not_send(data: bytes) -> None:
    client = Driver(Connection(Role.CLIENT, features=EVERY))
    client.feed(data + credit_frame(1, 1024))
    refused, after = client.events
    assert isinstance(refused, FrameError)
    assert after == Credit(1, 1024)


def test_welcome_needs_no_tlvs() -> None:
    client = Driver(Connection(Role.CLIENT))
    client.feed(data_frame(FrameType.WELCOME))
    assert client.events == [Welcome(0, Features(), PeerLimits(), None)]


def test_a_reply_with_a_crc_carries_no_queue_time() -> None:
    client = Driver(Connection(Role.CLIENT))
    client.feed(data_frame(FrameType.RESULT, rid=1, flags=END | Flag.CRC, rows=1))
    assert client.events == [Result(1, END | Flag.CRC, 0, 0, 1, b"", b"")]  # type: ignore[arg-type]
