import pytest

from trioserve_protocol import (
    DType,
    ErrorCode,
    Flag,
    FrameType,
    RequestClass,
    Signature,
    TensorSpec,
    bound_frame,
    error_frame,
    frame,
    frame_bytes,
    infer_flags,
    ping_frame,
)
from trioserve_tools.netcat._wire import Frame, Splitter

PING = ping_frame(5, b"12345678")
BOUND = bound_frame(
    6, 1, Signature((TensorSpec("x", DType.F32, (-1,)),), (TensorSpec("y", DType.F32, (-1,)),))
)


@pytest.mark.parametrize("size", [1, 7, 32, 33, 1000])
def test_cuts_a_stream_into_frames(size: int) -> None:
    data, splitter, found = PING + BOUND + PING, Splitter(), []
    for start in range(0, len(data), size):
        found += splitter.feed(data[start : start + size])
    assert [one.raw for one in found] == [PING, BOUND, PING]
    assert splitter.rest == b""
    assert found[1].meta == BOUND[32:]
    assert found[0].payload == b"12345678"


@pytest.mark.parametrize("data", [b"HTTP/1.1 400", b"T", b"TX", b"TS\x02\x10"])
def test_knows_what_is_no_frame_as_soon_as_it_can(data: bytes) -> None:
    splitter = Splitter()
    assert splitter.feed(data) == []
    assert splitter.broken == (data != b"T")
    assert splitter.rest == data


def test_names_types_flags_and_ids() -> None:
    flags = infer_flags(RequestClass.SHEDDABLE, retry=True)
    many = Frame.parse(
        frame_bytes(frame(FrameType.INFER_MANY, rid=7, rows=3, handle=1, flags=flags | 0x4000))
    )
    assert many.name == "INFER_MANY"
    assert many.flag_names[0] == "CLASS3"
    assert "END" in many.flag_names
    assert many.flag_names[-1] == "0x4000"
    assert many.ids == range(7, 10)
    assert Frame.parse(error_frame(7, ErrorCode.SHED, count=2)).ids == range(7, 9)
    assert Frame.parse(frame_bytes(frame(0x99))).name == "type 0x99"
    assert Flag.END
