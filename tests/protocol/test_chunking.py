"""Any chunking of the bytes gives the same events."""

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.frames import END, build, cut, events_of, infer
from trioserve_protocol import (
    Flag,
    FrameType,
    InferMany,
    Tag,
    bind_frame,
    cancel_frame,
    ping_frame,
    tlv,
)

STREAM = b"".join(
    [
        build(FrameType.HELLO, rid=1, meta=tlv(Tag.CLIENT, "test/1")),
        bind_frame(1, 1, "echo"),
        *[infer(rid, bytes([rid] * 8)) for rid in range(2, 10)],
        infer(0, bytes(200)),
        infer(10, bytes(300)),
        build(0x81, payload=bytes(96)),
        build(0x12, rid=11, handle=1, flags=END, rows=3, payload=bytes(160)),
        infer(20, bytes(16), flags=END | Flag.CRC, aux=zlib.crc32(bytes(16))),
        infer(21, bytes(16), flags=END | Flag.CRC, aux=5),
        *[infer(rid, bytes(8), meta=tlv(Tag.PARAMS, "{}")) for rid in range(30, 38)],
        ping_frame(1, b"12345678"),
        cancel_frame(3),
        b"GARBAGE!" * 5,
    ]
)


def test_every_split_in_two_gives_the_same_events() -> None:
    wanted = events_of([STREAM], large_nbytes=128)
    assert len(wanted) == 26
    for place in range(1, len(STREAM)):
        assert events_of(cut(STREAM, [place]), large_nbytes=128) == wanted


def test_byte_by_byte_gives_the_same_events() -> None:
    wanted = events_of([STREAM])
    assert events_of([bytes([byte]) for byte in STREAM], large_nbytes=128) == wanted


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(st.integers(1, len(STREAM)), max_size=12),
    max_frames=st.integers(1, 9),
    vector_from=st.integers(2, 9),
    large_nbytes=st.sampled_from([8, 100, 150, 65_536]),
)
def test_any_chunking_gives_the_same_events(
    places: list[int], max_frames: int, vector_from: int, large_nbytes: int
) -> None:
    chunks = cut(STREAM, places)
    got = events_of(chunks, max_frames=max_frames, vector_from=vector_from, large_nbytes=large_nbytes)
    assert got == events_of([STREAM])
    assert any(isinstance(event, InferMany) for event in got)
