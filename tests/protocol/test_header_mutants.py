"""Every single-byte mutant of a valid INFER header (32 bytes x 256 values) has a defined outcome."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.frames import Driver, events_of
from trioserve_protocol import (
    HEADER_NBYTES,
    Connection,
    DType,
    ErrorCode,
    FatalError,
    Feature,
    Flag,
    FrameError,
    FrameType,
    Infer,
    InferMany,
    Ping,
    Role,
    Signature,
    TensorSpec,
    check_request,
    frame,
    frame_bytes,
    ping_frame,
)

SIGNATURE = Signature(
    (TensorSpec("x", DType.F32, (-1, 4)),), (TensorSpec("y", DType.F32, (-1, 4)),), max_rows=32
)
BOUND_HANDLE = 1
FRAME = frame_bytes(
    frame(
        FrameType.INFER,
        rid=0x0102_0304_0506_0708,
        handle=BOUND_HANDLE,
        flags=int(Flag.END),
        timeout_us=1_000_000,
        rows=2,
        payload=bytes(range(1, 33)),
    )
)

FIELDS = {
    "magic": range(3),
    "type": range(3, 4),
    "body": range(4, 8),
    "rid": range(8, 16),
    "handle": range(16, 18),
    "flags": range(18, 20),
    "tmo": range(20, 24),
    "meta8": range(24, 26),
    "rows": range(26, 28),
    "aux": range(28, 32),
}

# What may become of the frame when one byte of a field is changed (or set to what it was: "accepted").
OUTCOMES = {
    "magic": {"accepted", "fatal UNSUPPORTED_VERSION"},
    "type": {
        "accepted",
        "skipped",  # bit 7
        "refused UNKNOWN_TYPE",  # not a request, or a feature that was not agreed
        "refused UNKNOWN_FLAG",  # END is not defined for it
    },
    "body": {
        "accepted",
        "fatal INVALID_SIZE",  # not a multiple of 8
        "fatal FRAME_TOO_LARGE",
        "refused INVALID_SIZE",  # shorter than rows x row size; what follows is then read as a frame
        "waits",  # longer than what has come
    },
    "rid": {"accepted"},  # a mutation of one byte of this id never gives 0; see below for 0
    "handle": {"accepted", "refused HANDLE_NOT_BOUND", "refused INVALID_META"},  # 0 without a meta
    "flags": {
        "accepted",  # class, NOREPLY, RETRY, SAMPLED, reserved ignorable bits
        "refused UNKNOWN_TYPE",  # END taken away
        "refused UNKNOWN_FLAG",
        "refused CRC_MISMATCH",
    },
    "tmo": {"accepted"},
    "meta8": {"accepted", "fatal INVALID_META", "refused INVALID_META"},  # the payload is no TLV
    "rows": {"accepted", "refused INVALID_META", "refused INVALID_SIZE", "refused TOO_MANY_ROWS"},
    "aux": {"accepted"},
}


def outcome(data: bytes) -> str:
    """Say what a server makes of one frame, up to the check against the model's signature."""
    driver = Driver(Connection(Role.SERVER))
    driver.feed(data + ping_frame(99))
    if not driver.events:
        return "waits"
    event = driver.events[0]
    if isinstance(event, FatalError):
        return f"fatal {event.code.name}"
    if isinstance(event, FrameError):
        return f"refused {event.code.name}"
    if event == Ping(99, b""):
        return "skipped"
    assert isinstance(event, Infer | InferMany), event
    if event.handle != BOUND_HANDLE:
        return f"refused {ErrorCode.HANDLE_NOT_BOUND.name}"
    fault = check_request(
        SIGNATURE, event.rows, len(event.payload), event.meta, many=isinstance(event, InferMany)
    )
    return f"refused {fault.code.name}" if fault else "accepted"


def test_all_8192_mutants_have_an_outcome_of_the_table() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    count = 0
    for field, offsets in FIELDS.items():
        for offset in offsets:
            mutant = bytearray(FRAME)
            for value in range(256):
                mutant[offset] = value
                seen[field].add(outcome(bytes(mutant)))
                count += 1
    assert count == HEADER_NBYTES * 256
    assert seen == OUTCOMES


def test_rid_0_is_refused() -> None:
    data = bytearray(FRAME)
    data[8:16] = bytes(8)
    assert outcome(bytes(data)) == "refused INVALID_META"


VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
EVERY = Feature.PARTS | Feature.STREAM | Feature.SHM | Feature.SEQ | Feature.COMPRESS


def one_frame_of_each_type() -> dict[tuple[Role, FrameType], bytes]:
    """Return a valid frame of each type for each role that receives it, from the vectors."""
    found: dict[tuple[Role, FrameType], bytes] = {}
    for name in ("requests", "control", "replies"):
        vectors: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))
        for vector in vectors:
            data, role = bytes.fromhex(vector["bytes"]), Role(vector["role"])
            while len(data) >= HEADER_NBYTES and not data[3] & 0x80:
                nbytes = HEADER_NBYTES + int.from_bytes(data[4:8], "little")
                found.setdefault((role, FrameType(data[3])), data[:nbytes])
                data = data[nbytes:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("role", "kind"), one_frame_of_each_type())
def test_every_mutant_of_every_type_gives_events_and_the_connection_goes_on(
    role: Role, kind: FrameType
) -> None:
    data = one_frame_of_each_type()[role, kind]
    for offset in range(HEADER_NBYTES):
        mutant = bytearray(data)
        for value in range(256):
            mutant[offset] = value
            events = events_of([bytes(mutant) + ping_frame(99)], role, features=EVERY)
            if not events or isinstance(events[-1], FatalError):
                continue  # it waits for more bytes, or nothing after it can be trusted
            if offset not in FIELDS["body"]:
                assert events[-1] == Ping(99, b""), f"byte {offset} = {value}"


def test_the_mutated_frames_are_of_every_type() -> None:
    assert {kind for _, kind in one_frame_of_each_type()} == set(FrameType)
