import math

import pytest

from trioserve_protocol import (
    HEADER,
    HEADER_DTYPE,
    HEADER_NBYTES,
    Connection,
    Error,
    ErrorCode,
    Flag,
    FrameType,
    LocalProtocolError,
    Role,
    error_frame,
    frame,
    frame_bytes,
    infer_flags,
    pad8,
    ping_frame,
    timeout_us,
    tlv,
)


def test_the_header_has_32_bytes_in_both_descriptions() -> None:
    assert HEADER.size == HEADER_DTYPE.itemsize == HEADER_NBYTES == 32


def test_ping_is_four_bytes_and_zeros() -> None:
    assert ping_frame() == bytes.fromhex("54530132") + bytes(28)


def test_a_payload_is_not_copied() -> None:
    payload = bytearray(b"12345")
    head, body, pad = frame(FrameType.INFER, rid=1, meta=tlv(1, "m"), payload=payload)
    assert body is payload
    assert pad == bytes(3)
    assert len(head) == 32 + 16


def test_the_size_of_a_memoryview_is_in_bytes() -> None:
    parts = frame(FrameType.INFER, payload=memoryview(bytes(16)).cast("d"))
    assert HEADER.unpack_from(parts[0])[1] == 16
    assert len(parts) == 2


@pytest.mark.parametrize(
    "fields", [{"meta": b"1"}, {"rid": -1}, {"rid": 1 << 64}, {"rows": 1 << 16}, {"timeout_us": 1 << 32}]
)
def test_fields_out_of_range_are_our_fault(fields: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        frame(FrameType.INFER, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "left_ns, wanted",
    [(-1, None), (0, None), (1, 1), (999, 1), (1999, 1), (2000, 2), (1e18, 2**32 - 2), (math.inf, 0)],
)
def test_deadline_field(left_ns: float, wanted: int | None) -> None:
    assert timeout_us(left_ns) == wanted


def test_flags_of_requests() -> None:
    assert infer_flags() == Flag.END
    assert infer_flags(3, retry=True, sampled=True, noreply=True) == (
        3 | Flag.END | Flag.RETRY | Flag.SAMPLED | Flag.NOREPLY
    )


def receive_error(data: bytes) -> Error:
    (event,), _ = Connection(Role.CLIENT).receive(memoryview(data))
    assert isinstance(event, Error)
    return event


def test_a_shed_reply_is_32_bytes() -> None:
    data = error_frame(7, ErrorCode.SHED, retry_after_us=2000)
    assert data.hex(" ", 4) == "54530122 00000000 07000000 00000000 08010802 d0070000 00000100 00000000"
    assert receive_error(data) == Error(7, 1, ErrorCode.SHED, True, 2000, "")


def test_errors_carry_text_count_and_retry() -> None:
    assert receive_error(error_frame(7, ErrorCode.INTERNAL, "ü", count=9)) == (
        7, 9, ErrorCode.INTERNAL, False, None, "ü"
    )  # fmt: skip
    assert receive_error(error_frame(7, ErrorCode.WORKER_LOST)).retry_after_us == 0


def test_long_messages_are_cut_at_a_character() -> None:
    assert receive_error(error_frame(7, ErrorCode.INTERNAL, "ü" * 1000)).message == "ü" * 512
    assert receive_error(error_frame(7, ErrorCode.INTERNAL, "x" + "ü" * 1000)).message == "x" + "ü" * 511


def test_a_status_of_a_newer_server_stays_a_number() -> None:
    data = frame_bytes(frame(FrameType.ERROR, rid=1, handle=0x7F08, flags=int(Flag.END), rows=1))
    assert receive_error(data).code == 0x7F08


@pytest.mark.parametrize("nbytes, wanted", [(0, 0), (1, 8), (8, 8), (9, 16)])
def test_pad8(nbytes: int, wanted: int) -> None:
    assert pad8(nbytes) == wanted
