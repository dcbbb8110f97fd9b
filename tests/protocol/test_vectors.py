"""Every golden frame, in every chunking."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.describe import described
from tests.protocol.frames import cut, events_of
from trioserve_protocol import (
    ErrorCode,
    Feature,
    FrameType,
    Limits,
    RemoteProtocolError,
    Role,
    Signature,
    Tag,
    check_bytes_tensor,
    ping_frame,
)

FOLDER = Path(__file__).parents[2] / "protocol"
VECTORS: list[dict[str, Any]] = [
    vector
    for path in sorted((FOLDER / "vectors").glob("*.json"))
    if path.name != "bytes.json"
    for vector in json.loads(path.read_text("utf-8"))
]
TENSORS: list[dict[str, Any]] = json.loads((FOLDER / "vectors" / "bytes.json").read_text("utf-8"))
LARGE_NBYTES = [16, 65_536]


def received(vector: dict[str, Any], chunks: list[bytes], large_nbytes: int) -> list[Any]:
    features = Feature(0)
    for name in vector.get("features", ()):
        features |= Feature[name]
    return events_of(
        chunks,
        Role(vector["role"]),
        limits=Limits(**vector.get("limits", {})),
        features=features,
        large_nbytes=large_nbytes,
    )


def expect(vector: dict[str, Any], events: list[Any]) -> None:
    spec = Signature.decode(bytes.fromhex(vector["signature"])) if "signature" in vector else None
    assert len(events) == len(vector["events"])
    for event, wanted in zip(events, vector["events"], strict=True):
        assert described(event, wanted, spec) == wanted


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_vector_gives_its_events_in_every_chunking(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    whole = received(vector, [data], 65_536)
    expect(vector, whole)
    step = max(1, len(data) // 400)  # every split of all but the longest
    for large_nbytes in LARGE_NBYTES:
        assert received(vector, [bytes([byte]) for byte in data], large_nbytes) == whole
        for place in range(1, len(data), step):
            assert received(vector, cut(data, [place]), large_nbytes) == whole


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_vector_does_not_change_what_follows(vector: dict[str, Any]) -> None:
    events = received(vector, [bytes.fromhex(vector["bytes"]), ping_frame(0xABCDEF)], 65_536)
    if any(wanted["event"] == "fatal" for wanted in vector["events"]):
        expect(vector, events)
    else:
        assert events[-1].rid == 0xABCDEF
        expect(vector, events[:-1])


@pytest.mark.parametrize("tensor", TENSORS, ids=[tensor["name"] for tensor in TENSORS])
def test_bytes_tensors(tensor: dict[str, Any]) -> None:
    payload = memoryview(bytes.fromhex(tensor["tensor"]))
    if "status" in tensor:
        with pytest.raises(RemoteProtocolError) as caught:
            check_bytes_tensor(payload, tensor["count"], fast=tensor["fast"], exact=True)
        assert caught.value.code == tensor["status"]
    else:
        offsets, lengths, _ = check_bytes_tensor(payload, tensor["count"], fast=tensor["fast"], exact=True)
        found = [payload[a : a + n].hex() for a, n in zip(offsets.tolist(), lengths.tolist(), strict=True)]
        assert found == tensor["elements"]


def test_names_are_unique() -> None:
    names = [vector["name"] for vector in VECTORS + TENSORS]
    assert len(set(names)) == len(names)


def test_every_frame_type_is_shown() -> None:
    shown = {int(kind, 16) for vector in VECTORS for kind in re.findall(r"\b545301(..)", vector["bytes"])}
    assert shown >= set(FrameType)


def test_every_tlv_is_shown() -> None:
    heads = [
        head
        for vector in VECTORS
        for head in re.findall(r"\b([0-9a-f]{4})0000[0-9a-f]{8}\b", vector["bytes"])
    ]
    assert {int.from_bytes(bytes.fromhex(head), "little") for head in heads} >= set(Tag)


def test_every_code_that_a_parser_gives_is_shown() -> None:
    shown = {event.get("status") or event.get("check") for vector in VECTORS for event in vector["events"]}
    given = (
        "INVALID_SHAPE INVALID_DTYPE INVALID_SIZE INVALID_META TOO_MANY_ROWS FRAME_TOO_LARGE FAILED_PRECONDITION "
        "UNSUPPORTED_VERSION UNKNOWN_TYPE UNKNOWN_FLAG UNKNOWN_TLV CRC_MISMATCH"
    )
    assert shown >= {ErrorCode[name] for name in given.split()}
    assert {tensor.get("status") for tensor in TENSORS} == {None, ErrorCode.INVALID_BYTES}
