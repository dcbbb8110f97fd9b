"""The Wireshark dissector, driven by tshark on captures that are written here from known bytes."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trioserve_protocol import (
    DType,
    ErrorCode,
    Flag,
    FrameType,
    Signature,
    Tag,
    TensorSpec,
    Timing,
    frame,
    tlv,
)

ROOT = Path(__file__).parents[2]
TO_SERVER, TO_CLIENT = 0, 1
Dissect = Callable[..., list[dict[str, str]]]

pytestmark = pytest.mark.slow


def wire(frame_type: FrameType, **fields: object) -> bytes:
    return b"".join(bytes(part) for part in frame(frame_type, **fields))  # type: ignore[arg-type]


INFER = wire(
    FrameType.INFER,
    rid=1,
    flags=Flag.END,
    timeout_us=1_000_000,
    rows=1,
    meta=tlv(Tag.MODEL, "echo")
    + tlv(Tag.TENSOR, bytes.fromhex("0b02000000000000100000000000000001000000 04000000")),
    payload=struct.pack("<4f", 1, 2, 3, 4),
)
RESULT = wire(FrameType.RESULT, rid=1, flags=Flag.END, timeout_us=123, rows=1, aux=20, payload=bytes(16))
SHED = wire(
    FrameType.ERROR, rid=2, handle=ErrorCode.SHED, flags=Flag.END | Flag.RETRYABLE, timeout_us=5000, rows=1
)


def test_tables_are_those_of_the_protocol() -> None:
    command = [sys.executable, str(ROOT / "tools/dev/dissector_tables.py"), "--check"]
    environment = {"PYTHONPATH": str(ROOT / "protocol")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr


def test_flag_bits_are_those_of_the_protocol() -> None:
    source = (ROOT / "protocol/dissector/trioserve.lua").read_text(encoding="utf-8")
    for flag in Flag:
        assert f'"{flag.name}", 16, nil, 0x{flag.value:04x})' in source


def test_header_fields(dissect: Dissect) -> None:
    fields = ["type", "rid", "handle", "flags", "flags.end", "timeout_us", "meta8", "rows", "body"]
    [row] = dissect([(TO_SERVER, INFER)], *(f"trioserve.{name}" for name in fields))
    expected = ["0x10", "1", "0", "0x0008", "1", "1000000", "6", "1", "64"]
    assert list(row.values()) == expected


def test_meta_and_payload(dissect: Dissect) -> None:
    fields = ["model", "tlv.text", "tensor.dtype", "tensor.dim", "tensor2.nbytes", "payload"]
    names = [f"trioserve.{name}" for name in fields if name != "tensor2.nbytes"]
    [row] = dissect([(TO_SERVER, INFER)], *names, "trioserve.tensor.nbytes")
    assert row["trioserve.model"] == row["trioserve.tlv.text"] == "echo"
    assert (row["trioserve.tensor.dtype"], row["trioserve.tensor.dim"]) == ("11", "1,4")
    assert row["trioserve.tensor.nbytes"] == "16"
    assert bytes.fromhex(row["trioserve.payload"].replace(":", "")) == struct.pack("<4f", 1, 2, 3, 4)


@pytest.mark.parametrize("cut", [1, 31, 32, 33, 95])
def test_a_frame_is_reassembled_over_segments(dissect: Dissect, cut: int) -> None:
    rows = dissect([(TO_SERVER, INFER[:cut]), (TO_SERVER, INFER[cut:])], "trioserve.rid", "_ws.col.Info")
    assert [row["trioserve.rid"] for row in rows] == ["", "1"]
    assert "INFER rid=1 echo rows=1" in rows[1]["_ws.col.Info"]


def test_many_frames_in_one_segment(dissect: Dissect) -> None:
    [row] = dissect([(TO_SERVER, INFER + wire(FrameType.PING, rid=7) + INFER[:40])], "trioserve.type")
    assert row["trioserve.type"] == "0x10,0x32"


def test_replies_are_linked_to_requests(dissect: Dissect) -> None:
    fields = ["trioserve.response_in", "trioserve.request_in", "trioserve.time", "trioserve.model"]
    request, reply = dissect([(TO_SERVER, INFER), (TO_CLIENT, RESULT)], *fields)
    assert request["trioserve.response_in"] == "2"
    assert reply["trioserve.request_in"] == "1"
    assert float(reply["trioserve.time"]) == pytest.approx(0.001)
    assert reply["trioserve.model"] == "echo"


def test_success_shows_the_server_s_times(dissect: Dissect) -> None:
    row = dissect([(TO_SERVER, INFER), (TO_CLIENT, RESULT)], "trioserve.server_us", "trioserve.queue_us")[1]
    assert list(row.values()) == ["123", "20"]


def test_requests_of_a_many_are_found_by_range(dissect: Dissect) -> None:
    many = wire(FrameType.INFER_MANY, rid=100, handle=1, flags=Flag.END, rows=4, payload=bytes(64))
    reply = wire(FrameType.RESULT_MANY, rid=102, flags=Flag.END, rows=2, payload=bytes(32))
    rows = dissect([(TO_SERVER, many), (TO_CLIENT, reply)], "trioserve.request_in")
    assert rows[1]["trioserve.request_in"] == "1"


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (wire(FrameType.BOUND, rid=1, handle=9), {"handle": "9", "status": ""}),
        (wire(FrameType.CREDIT, timeout_us=64, aux=256), {"credit.kib": "64", "credit.requests": "256"}),
        (wire(FrameType.GOAWAY, rid=12), {"goaway.taken": "12", "rid": ""}),
        (wire(FrameType.PARTIAL, rid=1, timeout_us=3, rows=1), {"part": "3", "status": "0x0000"}),
        (wire(FrameType.RESULT, rid=1, flags=Flag.CRC, aux=5, rows=1), {"crc": "0x00000005", "queue_us": ""}),
        (wire(FrameType.ADMIN, rid=1, payload=b'{"ok":true}'), {"payload.text": '{"ok":true}'}),
    ],
    ids=["bound", "credit", "goaway", "partial", "crc", "admin"],
)
def test_fields_that_change_their_meaning(dissect: Dissect, data: bytes, fields: dict[str, str]) -> None:
    [row] = dissect([(TO_CLIENT, data)], *(f"trioserve.{name}" for name in fields))
    assert list(row.values()) == list(fields.values())


def test_errors_are_expert_items(dissect: Dissect) -> None:
    fields = ["trioserve.status", "trioserve.retry_after_us", "_ws.expert.message", "_ws.col.Info"]
    [row] = dissect([(TO_CLIENT, SHED)], *fields)
    assert row["trioserve.status"] == f"{ErrorCode.SHED:#06x}"
    assert row["trioserve.retry_after_us"] == "5000"
    assert row["_ws.expert.message"] == "SHED"
    assert "ERROR rid=2 rows=1 SHED" in row["_ws.col.Info"]


def test_a_second_terminal_reply_is_an_expert_item(dissect: Dissect) -> None:
    rows = dissect([(TO_SERVER, INFER), (TO_CLIENT, RESULT), (TO_CLIENT, RESULT)], "_ws.expert.message")
    assert [row["_ws.expert.message"] for row in rows] == ["", "", "Second terminal reply"]


def test_a_bound_handle_shows_its_model(dissect: Dissect) -> None:
    bind = wire(FrameType.BIND, rid=1, handle=3, meta=tlv(Tag.MODEL, "scale"))
    infer = wire(FrameType.INFER, rid=2, handle=3, flags=Flag.END, rows=1, payload=bytes(16))
    rows = dissect([(TO_SERVER, bind), (TO_SERVER, infer)], "trioserve.model")
    assert rows[1]["trioserve.model"] == "scale"


def test_signature(dissect: Dissect) -> None:
    inputs, outputs = (TensorSpec("x", DType.F32, (-1, 128)),), (TensorSpec("y", DType.F16, (-1, 64)),)
    value = Signature(inputs, outputs, version=3, max_rows=64).encode()
    bound = wire(FrameType.BOUND, rid=1, flags=Flag.END, meta=tlv(Tag.SIGNATURE, value))
    fields = [
        "trioserve.signature.version",
        "trioserve.tensor.name",
        "trioserve.tensor.dim",
        "trioserve.tensor.dtype",
    ]
    [row] = dissect([(TO_CLIENT, bound)], *fields)
    assert list(row.values()) == ["3", "x,y", "-1,128,-1,64", "11,10"]


def test_timing(dissect: Dissect) -> None:
    value = Timing(received_ns=1_000, sent_ns=9_000, batch_id=4, batch_rows=16, cut_reason=2).encode()
    reply = wire(FrameType.RESULT, rid=1, flags=Flag.END, rows=1, meta=tlv(Tag.TIMING, value))
    fields = ["received_ns", "sent_ns", "batch_id", "batch_rows", "cut_reason"]
    [row] = dissect([(TO_CLIENT, reply)], *(f"trioserve.timing.{name}" for name in fields))
    assert list(row.values()) == ["1000", "9000", "4", "16", "2"]


def test_a_secret_is_not_decoded(dissect: Dissect) -> None:
    hello = wire(FrameType.HELLO, meta=tlv(Tag.AUTH, b"secret"))
    [row] = dissect([(TO_SERVER, hello)], "trioserve.tlv.value", "trioserve.tlv.text", "_ws.col.Info")
    assert "secret" not in "".join(row.values())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "Bad magic"),
        (b"TS\x02" + bytes(29), "Unknown protocol version"),
        (b"TS\x01\x10\x04" + bytes(27), "Body is not a multiple of 8"),
        (b"TS\x01\x10\xf8\xff\xff\xff" + bytes(24), "Body is over the default limit"),
        (b"TS\x01\x10\x08\0\0\0" + bytes(16) + b"\x02\0" + bytes(14), "Meta is longer than the body"),
    ],
)
def test_what_is_not_a_frame_says_why(dissect: Dissect, data: bytes, text: str) -> None:
    [row] = dissect([(TO_SERVER, data)], "_ws.expert.message")
    assert row["_ws.expert.message"] == text


def vectors() -> list[tuple[int, bytes]]:
    """The protocol's golden frames: who sends them, and their bytes."""
    files = sorted((ROOT / "protocol" / "vectors").glob("*.json"))
    entries = [entry for path in files for entry in json.loads(path.read_text(encoding="utf-8"))]
    # Those with limits of their own are frames that only these limits refuse.
    framed = [entry for entry in entries if "role" in entry and "limits" not in entry]
    return [
        (TO_SERVER if entry["role"] == "server" else TO_CLIENT, bytes.fromhex(entry["bytes"]))
        for entry in framed
    ]


def test_every_vector_is_shown(dissect: Dissect) -> None:
    segments = [(direction, data, stream) for stream, (direction, data) in enumerate(vectors())]
    # A vector of less than a header is held back for reassembly.
    whole = sum(len(data) >= 32 for _, data in vectors())
    rows = dissect(segments, "trioserve")
    assert sum(bool(row["trioserve"]) for row in rows) == whole > 100


def mutants() -> list[bytes]:
    """The frame above with each byte of its meta set to 0xFF: lengths, tags and counts that lie."""
    return [INFER[:at] + b"\xff" + INFER[at + 1 :] for at in range(32, 80)]


def test_no_malformed_meta_stops_the_dissector(dissect: Dissect) -> None:
    rows = dissect([(TO_SERVER, mutant) for mutant in mutants()], "trioserve.rid", "trioserve.payload")
    assert [row["trioserve.rid"] for row in rows] == ["1"] * len(mutants())
    assert all(row["trioserve.payload"] for row in rows)


def test_other_ports_are_recognized_by_their_first_bytes(dissect: Dissect) -> None:
    segments = [(TO_SERVER, INFER), (TO_SERVER, INFER[:10]), (TO_SERVER, INFER[10:])]
    rows = dissect(segments, "trioserve.rid", server_port=9_999)
    assert [row["trioserve.rid"] for row in rows] == ["1", "", "1"]


def test_foreign_traffic_is_left_alone(dissect: Dissect) -> None:
    [row] = dissect([(TO_SERVER, b"GET / HTTP/1.1\r\n\r\n" + bytes(32))], "trioserve", server_port=9_999)
    assert row["trioserve"] == ""
