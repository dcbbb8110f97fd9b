"""Requests over a real socket: every form of them, and every way of delivering their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import Array, ServerProcess, Wire, infer, row
from tests.e2e.models import POISON
from trioserve_protocol import (
    Bound,
    DType,
    Error,
    ErrorCode,
    Flag,
    Result,
    ResultMany,
    Tag,
    TensorSpec,
    bind_frame,
    parse_meta,
    ping_frame,
    tlv,
)

pytestmark = pytest.mark.e2e

WORKED_FRAME = bytes.fromhex(
    """
    54 53 01 10 40 00 00 00 01 00 00 00 00 00 00 00
    00 00 08 00 40 42 0f 00 06 00 01 00 00 00 00 00
    01 00 00 00 04 00 00 00 65 63 68 6f 00 00 00 00
    03 00 00 00 18 00 00 00 0b 02 00 00 00 00 00 00
    10 00 00 00 00 00 00 00 01 00 00 00 04 00 00 00
    00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40
    """
)


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def test_the_worked_frame_needs_no_handshake(wire: Wire) -> None:
    wire.send(WORKED_FRAME)
    assert wire.result(1).tolist() == [1, 2, 3, 4]


def test_a_bind_and_its_first_requests_in_one_write(wire: Wire) -> None:
    wire.send(bind_frame(9, 1, "scale"), infer(1, row(1)), infer(2, row(2)))
    bound = wire.receive()
    assert isinstance(bound, Bound)
    assert (bound.rid, bound.handle) == (9, 1)
    assert bound.signature.inputs == (TensorSpec("x", DType.F32, (-1, 4)),)
    assert sorted(wire.result(rid)[0] for rid in (1, 2)) == [2, 4]


def test_one_request_at_a_time(wire: Wire) -> None:
    wire.bind("scale")
    for rid in range(1, 40):
        wire.send(infer(rid, row(rid)))
        assert wire.result(rid)[0] == 2 * rid


def test_a_request_of_several_rows(wire: Wire) -> None:
    wire.bind("scale")
    rows = np.arange(28, dtype=np.float32).reshape(7, 4)
    wire.send(infer(5, rows, rows=7))
    event = wire.receive()
    assert isinstance(event, Result)
    assert (event.rid, event.rows) == (5, 7)
    assert np.frombuffer(event.payload, np.float32).tolist() == (rows * 2).ravel().tolist()


@pytest.mark.parametrize("count", [2, 5, 6, 40, 250])
def test_a_run_in_one_write(wire: Wire, count: int) -> None:
    wire.bind("scale")
    wire.send(*(infer(rid, row(rid)) for rid in range(1, count + 1)))
    answers = {event.rid: event for event in wire.receive_many(count)}
    assert sorted(answers) == list(range(1, count + 1))
    for rid, event in answers.items():
        assert np.frombuffer(event.payload, np.float32)[0] == 2 * rid


def test_a_run_over_the_window_is_refused_from_the_window_on(wire: Wire) -> None:
    wire.bind("slow")
    wire.send(*(infer(rid, row(150)) for rid in range(1, 301)))
    answers = wire.receive_many(300)
    refused = [event for event in answers if isinstance(event, Error)]
    assert {event.code for event in refused} == {ErrorCode.CREDIT_EXCEEDED}
    assert [event.rid for event in refused] == list(range(257, 301))
    assert all(event.retryable for event in refused)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_infer_many(wire: Wire, count: int) -> None:
    wire.bind("scale")
    rows = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    wire.send(infer(100, rows, rows=count, many=True))
    answered = results_of_many(wire, 100, count)
    assert answered.tolist() == (rows * 2).tolist()


def results_of_many(wire: Wire, rid: int, count: int) -> Array:
    """The results of an INFER_MANY of the small models, in the order of its ids."""
    rows = np.full((count, 4), np.nan, np.float32)
    left = count
    while left:
        event = wire.receive()
        assert isinstance(event, Result | ResultMany), event
        many = event.rows if isinstance(event, ResultMany) else 1
        at = event.rid - rid
        assert np.isnan(rows[at : at + many]).all()
        rows[at : at + many] = np.frombuffer(event.payload, np.float32).reshape(many, 4)
        left -= many
    return rows


def test_infer_many_of_which_some_fail(wire: Wire) -> None:
    wire.bind("fragile")
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)
    rows[4, 0] = POISON
    wire.send(infer(1, rows, rows=10, many=True))
    ended: dict[int, str] = {}
    while len(ended) < 10:
        event = wire.receive()
        many = event.count if isinstance(event, Error) else getattr(event, "rows", 1)
        ended |= dict.fromkeys(range(event.rid, event.rid + many), type(event).__name__)
    assert ended.pop(5) == "Error"
    assert set(ended.values()) <= {"ResultMany", "Result"}


def test_one_poisoned_row_of_32_fails_alone(wire: Wire, server: ServerProcess) -> None:
    wire.bind("fragile")
    before = statistics_of(server, "fragile")["batches"]
    wire.send(*(infer(rid, row(POISON if rid == 13 else rid)) for rid in range(1, 33)))
    answers = {event.rid: event for event in wire.receive_many(32)}
    bad = answers.pop(13)
    assert isinstance(bad, Error)
    assert bad.code == ErrorCode.MODEL_RAISED
    assert not bad.retryable
    for rid, event in answers.items():
        assert isinstance(event, Result)
        assert np.frombuffer(event.payload, np.float32)[0] == 2 * rid
    assert statistics_of(server, "fragile")["batches"] - before <= 2


def statistics_of(server: ServerProcess, model: str) -> dict[str, int]:
    [found] = [entry for entry in server.statistics()["models"] if entry["model"] == model]
    return found


def test_two_inputs_and_two_outputs(wire: Wire) -> None:
    wire.bind("mixed")
    rows = 3
    a = np.arange(9, dtype=np.uint8).reshape(rows, 3)
    b = np.arange(rows * 50_001, dtype=np.float32).reshape(rows, 50_001)
    wire.send(infer(1, padded(a) + padded(b), rows=rows))
    event = wire.receive()
    assert isinstance(event, Result)
    assert np.frombuffer(event.payload[:24], np.int64).tolist() == a.sum(axis=1).tolist()
    assert np.frombuffer(event.payload[24:60], np.float32).tolist() == b[:, [0, 1, -1]].ravel().tolist()


def padded(array: np.ndarray) -> bytes:
    data = array.tobytes()
    return data + bytes(-len(data) % 8)


# ---------------------------------------------------------------- flags


def test_noreply_ends_with_an_empty_result(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(infer(1, row(1), flags=Flag.NOREPLY))
    event = wire.receive()
    assert isinstance(event, Result)
    assert (event.rid, bytes(event.payload)) == (1, b"")


def test_sampled_carries_the_phases_of_the_request_in_order(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(infer(1, row(1), flags=Flag.SAMPLED))
    event = wire.receive()
    assert isinstance(event, Result)
    timing = parse_meta(event.meta, frozenset({Tag.TIMING})).timing
    assert timing is not None
    phases = [
        timing.received_ns, timing.parsed_ns, timing.ready_ns, timing.batched_ns, timing.input_copied_ns,
        timing.run_ns, timing.output_copied_ns, timing.finished_ns, timing.sent_ns,
    ]  # fmt: skip
    assert phases == sorted(phases)
    assert phases[0] > 0


def test_a_checksum_is_checked_for_small_and_large_bodies(wire: Wire) -> None:
    from zlib import crc32

    wire.bind("scale").bind("image", 2)
    small, large = row(3).tobytes(), np.ones(150_528, np.float32).tobytes()
    for handle, payload in ((1, small), (2, large)):
        good = with_checksum(infer(1, payload, handle=handle), crc32(payload))
        bad = with_checksum(infer(2, payload, handle=handle), crc32(payload) ^ 1)
        wire.send(good)
        assert len(wire.result(1))
        wire.send(bad)
        assert wire.expect_error(ErrorCode.CRC_MISMATCH, 2).retryable


def with_checksum(frame: bytes, crc: int) -> bytes:
    flags = int.from_bytes(frame[18:20], "little") | Flag.CRC
    return frame[:18] + flags.to_bytes(2, "little") + frame[20:28] + crc.to_bytes(4, "little") + frame[32:]


# ---------------------------------------------------------------- by name


def named(model: str, *more: bytes) -> bytes:
    return tlv(Tag.MODEL, model) + b"".join(more)


def test_by_name_again_and_again_also_large(wire: Wire) -> None:
    for rid in range(1, 12):
        wire.send(infer(rid, row(rid), handle=0, meta=named("scale")))
        assert wire.result(rid)[0] == 2 * rid
    image = np.ones(150_528, np.float32)
    wire.send(infer(50, image, handle=0, meta=named("image")))
    assert wire.result(50)[0] == 150


def test_a_run_by_name(wire: Wire) -> None:
    wire.send(*(infer(rid, row(rid), handle=0, meta=named("scale")) for rid in range(1, 31)))
    assert {event.rid for event in wire.receive_many(30) if isinstance(event, Result)} == set(range(1, 31))


@pytest.mark.parametrize(
    "meta, handle, payload, rows, code",
    [
        (named("nobody"), 0, row(1).tobytes(), 1, ErrorCode.MODEL_NOT_FOUND),
        (named("scale", tlv(Tag.VERSION, (7).to_bytes(4, "little"))), 0, row(1).tobytes(), 1,
         ErrorCode.VERSION_NOT_FOUND),
        (named("../scale"), 0, row(1).tobytes(), 1, ErrorCode.INVALID_META),
        (named("scale"), 1, row(1).tobytes(), 1, ErrorCode.UNKNOWN_TLV),
        (b"", 7, row(1).tobytes(), 1, ErrorCode.HANDLE_NOT_BOUND),
        (b"", 1, row(1).tobytes()[:8], 1, ErrorCode.INVALID_SIZE),
        (b"", 1, row(1).tobytes() * 2, 1, ErrorCode.INVALID_SIZE),
        (b"", 1, row(1).tobytes() * 33, 33, ErrorCode.TOO_MANY_ROWS),
        (tlv(0x7001, b"?"), 1, row(1).tobytes(), 1, ErrorCode.UNKNOWN_TLV),
        (tlv(Tag.PARAMS, b"{}"), 1, row(1).tobytes(), 1, ErrorCode.UNKNOWN_TLV),
        (tlv(Tag.OUTPUTS, b"\0\0"), 1, row(1).tobytes(), 1, ErrorCode.UNKNOWN_TLV),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_said_and_the_next_one_served(
    wire: Wire, meta: bytes, handle: int, payload: bytes, rows: int, code: ErrorCode
) -> None:
    wire.bind("scale")
    wire.send(infer(1, payload, handle=handle, rows=rows, meta=meta), infer(2, row(2)))
    error = wire.expect_error(code, 1)
    assert not error.retryable
    assert error.message
    assert wire.result(2)[0] == 4


def test_an_unknown_ignorable_tlv_is_ignored(wire: Wire) -> None:
    wire.bind("scale")
    wire.send(infer(1, row(2), meta=tlv(0x8001, b"whatever")))
    assert wire.result(1)[0] == 4


def test_an_id_in_flight_is_refused_without_ending_the_live_request(wire: Wire) -> None:
    wire.bind("slow").bind("scale", 2)
    wire.send(infer(7, row(60)))
    wire.send(infer(7, row(1), handle=2), infer(5, np.zeros((5, 4), np.float32), rows=5, many=True, handle=2))
    for _ in range(2):
        assert "7" in wire.expect_error(ErrorCode.RID_IN_FLIGHT, 0).message
    wire.result(7)
    wire.send(infer(7, row(1), handle=2))
    assert wire.result(7)[0] == 2


# ---------------------------------------------------------------- delivery


def test_byte_by_byte(wire: Wire) -> None:
    for byte in bind_frame(9, 1, "scale") + infer(5, row(1)) + ping_frame(2, b"x") + WORKED_FRAME:
        wire.send(bytes([byte]))
    kinds = [type(wire.receive()).__name__ for _ in range(4)]
    assert sorted(kinds) == ["Bound", "Pong", "Result", "Result"]


def test_every_split_of_two_frames(server: ServerProcess) -> None:
    data = infer(1, row(1)) + WORKED_FRAME.replace(b"\1\0\0\0\0\0\0\0", b"\2\0\0\0\0\0\0\0", 1)
    with server.connect() as wire:
        wire.bind("scale")
        for at in range(0, len(data) + 1, 3):
            wire.send(data[:at])
            wire.send(data[at:])
            assert {event.rid for event in wire.receive_many(2)} == {1, 2}


def test_thousands_of_small_frames_in_one_write(wire: Wire) -> None:
    """More than one turn takes: the rest waits in user space, where no poller reports it."""
    wire.bind("scale")
    frames = [infer(rid, row(rid)) for rid in range(1, 201)]
    pings = [ping_frame(rid) for rid in range(1, 701)]
    wire.send(*frames, *pings)
    names = [type(event).__name__ for event in wire.receive_many(900)]
    assert names.count("Result") == 200
    assert names.count("Pong") == 700
