import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.frames import events_of
from trioserve_protocol import (
    HEADER_NBYTES,
    Connection,
    Error,
    ErrorCode,
    Flag,
    FrameType,
    Infer,
    InferRun,
    Result,
    ResultRun,
    Role,
    Tag,
    error_columns,
    frame,
    frame_bytes,
    infer_flags,
    request_columns,
    result_columns,
    tlv,
)

END = int(Flag.END)
NEVER = 10**9
META = tlv(Tag.PARAMS, '{"k": 1}')

# Field, offset, struct format: every field of the header.
FIELDS = [
    ("magic", 0, "<H"),
    ("version", 2, "<B"),
    ("type", 3, "<B"),
    ("body", 4, "<I"),
    ("rid", 8, "<Q"),
    ("handle", 16, "<H"),
    ("flags", 18, "<H"),
    ("tmo", 20, "<I"),
    ("meta8", 24, "<H"),
    ("rows", 26, "<H"),
    ("aux", 28, "<I"),
]


def base_frame(role: Role, payload_nbytes: int, meta: bytes) -> bytes:
    kind, handle = (FrameType.INFER, 1) if role is Role.SERVER else (FrameType.RESULT, 0)
    payload = bytes(range(payload_nbytes))
    return frame_bytes(
        frame(kind, rid=77, handle=handle, flags=END, timeout_us=5, rows=1, meta=meta, payload=payload)
    )


def changed(base: bytes, offset: int, form: str, value: int) -> bytes:
    data = bytearray(base)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


def assert_paths_agree(data: bytes, role: Role) -> None:
    scalar = events_of([data], role, vector_from=NEVER)
    for vector_from in (2, 3, 6):
        assert events_of([data], role, vector_from=vector_from) == scalar


def interesting(form: str) -> st.SearchStrategy[int]:
    bits = 8 * struct.calcsize(form)
    top = (1 << bits) - 1
    one_bit = st.sampled_from([1 << bit for bit in range(bits)])
    return st.one_of(st.sampled_from([0, 1, 2, 8, 16, 24, 32, top, top - 1]), one_bit, st.integers(0, top))


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
@pytest.mark.parametrize("offset, form", [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS])
def test_paths_agree_when_one_field_differs(offset: int, form: str, role: Role) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        count=st.integers(2, 12),
        at=st.integers(0, 11),
        value=interesting(form),
        payload_nbytes=st.sampled_from([0, 8, 16, 64]),
        meta=st.sampled_from([b"", META]),
    )
    def check(count: int, at: int, value: int, payload_nbytes: int, meta: bytes) -> None:
        base = base_frame(role, payload_nbytes, meta)
        frames = [base] * count
        frames[at % count] = changed(base, offset, form, value)
        assert_paths_agree(b"".join(frames), role)

    check()


@pytest.mark.parametrize("role", [Role.SERVER, Role.CLIENT])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_paths_agree_when_one_byte_of_meta_or_payload_differs(role: Role, data: st.DataObject) -> None:
    base = base_frame(role, 32, META)
    frames = [base] * data.draw(st.integers(2, 12))
    at, offset = data.draw(st.integers(0, 11)), data.draw(st.integers(HEADER_NBYTES, len(base) - 1))
    frames[at % len(frames)] = changed(base, offset, "<B", data.draw(st.integers(0, 255)))
    assert_paths_agree(b"".join(frames), role)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), role=st.sampled_from([Role.SERVER, Role.CLIENT]))
def test_paths_agree_on_any_mixture(data: st.DataObject, role: Role) -> None:
    variants = [base_frame(role, 16, b""), base_frame(role, 16, META), base_frame(role, 40, b"")]
    for _ in range(3):
        _, offset, form = data.draw(st.sampled_from(FIELDS[3:]))
        variants.append(changed(variants[0], offset, form, data.draw(interesting(form))))
    picks = data.draw(st.lists(st.sampled_from(variants), min_size=1, max_size=40))
    assert_paths_agree(b"".join(picks), role)


def test_a_run_may_differ_in_id_deadline_class_retry_and_sampled() -> None:
    count = 8
    flags = np.array([END | i % 4 | (Flag.RETRY if i & 1 else 0) for i in range(count)], np.uint16)
    flags[3] |= int(Flag.SAMPLED)
    rids = np.arange(50, 50 + count, dtype=np.uint64)
    timeouts = np.arange(count, dtype=np.uint32)
    data = request_columns(4, rids, timeouts, flags, np.ones((count, 13), np.uint8), rows=2)
    (run,), used = Connection(Role.SERVER).receive(data.data.cast("B"))
    assert used == count * 48
    assert isinstance(run, InferRun)
    assert run[:4] == (count, 4, 2, b"")
    assert run.rids.tolist() == rids.tolist()
    assert run.flags.tolist() == flags.tolist()
    assert run.timeouts_us.tolist() == timeouts.tolist()
    assert run.payload.tolist() == [[1] * 13 + [0] * 3] * count


@pytest.mark.parametrize("flag", [Flag.NOREPLY, 1 << 14, 1 << 15])
def test_a_run_ends_where_another_flag_differs(flag: int) -> None:
    flags = np.full(12, END, np.uint16)
    flags[8:] |= int(flag)
    data = request_columns(1, np.arange(1, 13, dtype=np.uint64), 0, flags, np.zeros((12, 8), np.uint8))
    events, _ = Connection(Role.SERVER, vector_from=4).receive(data.data.cast("B"))
    assert [event.count for event in events] == [8, 4]


def test_a_run_ends_before_id_0() -> None:
    rids = np.arange(1, 13, dtype=np.uint64)
    rids[6] = 0
    data = request_columns(1, rids, 0, END, np.zeros((12, 8), np.uint8))
    events, _ = Connection(Role.SERVER, vector_from=4).receive(data.data.cast("B"))
    assert [type(event).__name__ for event in events] == ["InferRun", "FrameError", "InferRun"]


def test_frames_without_body_never_form_a_run() -> None:
    data = frame_bytes(frame(FrameType.RESULT, rid=3, flags=END | Flag.NOREPLY, rows=1)) * 8
    events, _ = Connection(Role.CLIENT).receive(memoryview(data))
    assert [type(event) for event in events] == [Result] * 8


def columns_equal_single_frames(block: npt.NDArray[np.uint8], make: Callable[[int], bytes]) -> None:
    assert block.flags.c_contiguous
    assert block.tobytes() == b"".join(make(index) for index in range(len(block)))


def test_request_columns_are_what_single_frames_would_be() -> None:
    rids = np.array([5, 2**63, 2**64 - 1], np.uint64)
    payload = np.arange(3 * 12, dtype=np.uint8).reshape(3, 12)
    columns_equal_single_frames(
        request_columns(9, rids, 1000, infer_flags(2, retry=True), payload, rows=3),
        lambda i: frame_bytes(
            frame(
                FrameType.INFER,
                rid=int(rids[i]),
                handle=9,
                flags=infer_flags(2, retry=True),
                timeout_us=1000,
                rows=3,
                payload=payload[i].tobytes(),
            )
        ),
    )


def test_result_columns_are_what_single_frames_would_be() -> None:
    rids = np.array([5, 6], np.uint64)
    server_us, queue_us = np.array([10, 20], np.uint32), np.array([1, 2], np.uint32)
    payload = np.arange(2 * 16, dtype=np.uint8).reshape(2, 16)
    block = result_columns(rids, payload, server_us=server_us, queue_us=queue_us)
    columns_equal_single_frames(
        block,
        lambda i: frame_bytes(
            frame(
                FrameType.RESULT,
                rid=int(rids[i]),
                flags=END,
                timeout_us=int(server_us[i]),
                aux=int(queue_us[i]),
                rows=1,
                payload=payload[i].tobytes(),
            )
        ),
    )
    (run,), _ = Connection(Role.CLIENT, vector_from=2).receive(block.data.cast("B"))
    assert isinstance(run, ResultRun)
    assert (run.count, run.rows, run.meta) == (2, 1, b"")
    assert run.server_us.tolist() == [10, 20]
    assert run.queue_us.tolist() == [1, 2]


@pytest.mark.parametrize(
    "code, retry_after_us, wanted",
    [(ErrorCode.SHED, None, 0), (ErrorCode.SHED, 77, 77), (ErrorCode.INTERNAL, None, None)],
)
def test_error_columns(code: ErrorCode, retry_after_us: int | None, wanted: int | None) -> None:
    block = error_columns(np.array([3, 4], np.uint64), code, retry_after_us)
    assert block.shape == (2, HEADER_NBYTES)
    events, _ = Connection(Role.CLIENT).receive(block.data.cast("B"))
    assert events == [Error(rid, 1, code, code.retryable, wanted, "") for rid in (3, 4)]


def test_a_stream_of_mixed_frames_costs_few_failed_probes() -> None:
    a, b = base_frame(Role.SERVER, 16, b""), changed(base_frame(Role.SERVER, 16, b""), 26, "<H", 2)
    events, _ = Connection(Role.SERVER, vector_from=3).receive(memoryview((a + b) * 40))
    assert [type(event) for event in events] == [Infer] * 80
