import json

import numpy as np
import pytest

from tests.client.fake_server import PAIR, SCALE, UPPER, encode_outputs
from trioserve_protocol import (
    DType,
    ErrorCode,
    FrameType,
    Signature,
    Tag,
    TensorDecl,
    Timing,
    admin_frame,
    bind_frame,
    bound_frame,
    credit_frame,
    error_frame,
    frame,
    frame_bytes,
    goaway_frame,
    infer_flags,
    ping_frame,
    tlv,
)
from trioserve_tools.netcat._explain import Explainer, not_a_frame, status_text
from trioserve_tools.netcat._wire import Frame


def result(signature: Signature, *outputs: np.ndarray, meta: bytes = b"") -> tuple[Explainer, Frame]:
    explainer = Explainer()
    explainer.received(Frame.parse(bound_frame(1, 5, signature)))
    explainer.sent(Frame.parse(frame_bytes(frame(FrameType.INFER, rid=2, handle=5, rows=1, flags=8))))
    rows, payload = len(outputs[0]), encode_outputs(outputs)
    raw = frame_bytes(
        frame(FrameType.RESULT, rid=2, rows=rows, timeout_us=70, aux=30, flags=8, meta=meta, payload=payload)
    )
    return explainer, Frame.parse(raw)


def test_a_dump_notes_each_field_of_the_header() -> None:
    explainer, found = result(SCALE, np.ones((1, 4), np.float32))
    lines = explainer.as_dump(found, "<").splitlines()
    assert lines[0] == "< RESULT rid 2, 48 bytes"
    notes = [line[8 + 49 :] for line in lines[1:10]]
    assert notes == [
        "w0     'TS', version 1, type 0x20 RESULT",
        "body   16 bytes",
        "rid    2",
        "status 0.0 OK",
        "flags  END",
        "tmo    70 us in the server",
        "meta8  0 bytes of meta",
        "rows   1",
        "aux    30 us in the queue",
    ]
    assert lines[-1].strip() == "y: [[1.0, 1.0, 1.0, 1.0]]"
    hexed = bytes.fromhex("".join(line[8:56] for line in lines[1:11]))
    assert hexed == found.raw


def test_a_dump_walks_the_meta() -> None:
    meta = tlv(Tag.TIMING, Timing(received_ns=5).encode())
    explainer, found = result(SCALE, np.ones((1, 4), np.float32), meta=meta)
    text = explainer.as_dump(found, "<")
    assert "TLV TIMING, 112 bytes" in text
    assert '"received_ns": 5' in text


def test_values_are_decoded_once_the_model_is_known() -> None:
    explainer, found = result(PAIR, np.array([7]), np.array([[True, False, True]]))
    assert explainer.outputs(found) == {"sum": [7], "flag": [[True, False, True]]}
    assert explainer.as_json(found)["outputs"]["sum"] == [7]
    explainer, found = result(UPPER, np.array([b"A", b"\xff"], object))
    assert explainer.outputs(found) == {"upper": ["A", "\\xff"]}
    assert Explainer().as_json(found)["payload_hex"]
    explainer, found = result(SCALE, np.ones((1, 2), np.float32))
    assert explainer.outputs(found) == {}


def test_many_values_are_shortened() -> None:
    wide = Signature(SCALE.inputs, (SCALE.outputs[0]._replace(dims=(-1, 100)),))
    explainer, found = result(wide, np.zeros((1, 100), np.float32))
    assert "... 100 values" in explainer.as_dump(found, "<")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (error_frame(3, ErrorCode.SHED, "full", retry_after_us=500), {"status": 264, "retry_after_us": 500}),
        (error_frame(3, ErrorCode.INVALID_SHAPE), {"status": 259, "meta": {}}),
        (credit_frame(7, 4096), {"window_requests": 7, "window_kib": 4}),
        (goaway_frame(9, "bye"), {"rid": 9, "meta": {"message": "bye"}}),
        (admin_frame(3, b'{"a": 1}'), {"json": {"a": 1}}),
        (frame_bytes(frame(FrameType.PARTIAL, rid=3, timeout_us=2, rows=1)), {"part": 2}),
        (frame_bytes(frame(0x99, rid=3, payload=b"abc")), {"type": "type 0x99", "payload_hex": "6162630000000000"}),
    ],
)  # fmt: skip
def test_json_says_what_the_fields_mean(raw: bytes, expected: dict[str, object]) -> None:
    described = Explainer().as_json(Frame.parse(raw))
    assert expected.items() <= described.items()
    json.dumps(described)
    assert Explainer().as_dump(Frame.parse(raw), "<")


def test_requests_say_their_deadline() -> None:
    def line(timeout_us: int) -> str:
        raw = frame_bytes(
            frame(FrameType.INFER, rid=1, handle=1, rows=1, timeout_us=timeout_us, flags=infer_flags())
        )
        return Explainer().as_dump(Frame.parse(raw), ">")

    assert "500 us left" in line(500)
    assert "0, the model's own deadline" in line(0)


def test_a_bound_shows_the_signature_and_a_bind_the_model() -> None:
    assert '"max_rows": 64' in Explainer().as_dump(Frame.parse(bound_frame(1, 1, SCALE)), "<")
    assert '"scale"' in Explainer().as_dump(Frame.parse(bind_frame(1, 1, "scale")), ">")
    meta = tlv(Tag.TENSOR, TensorDecl(DType.F32, (1, 4), 16, 0).encode())
    raw = frame_bytes(frame(FrameType.INFER, rid=1, handle=1, rows=1, meta=meta, flags=8))
    assert '"dtype": "F32"' in Explainer().as_dump(Frame.parse(raw), ">")


def test_malformed_meta_is_shown_all_the_same() -> None:
    raw = frame_bytes(frame(FrameType.BOUND, rid=1, handle=1, meta=b"\x01\0\0\0\xff\0\0\0"))
    explainer = Explainer()
    explainer.received(Frame.parse(raw))
    assert "malformed: TLV MODEL runs over the end" in explainer.as_dump(Frame.parse(raw), "<")
    assert "malformed" in explainer.as_json(Frame.parse(raw))["meta"]


def test_what_is_no_frame_is_shown_as_text() -> None:
    assert "HTTP/1.1 400" in not_a_frame(b"HTTP/1.1 400\r\n", "<")


def test_a_status_has_its_name() -> None:
    assert status_text(0x0108) == "8.1 SHED"
    assert status_text(0x6308) == "8.99 unknown"
    assert ping_frame(1)
