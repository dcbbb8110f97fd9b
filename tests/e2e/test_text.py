"""Text in, numbers out: through a tokenizer process and an executor process, over the wire."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, Wire, infer, serving
from trioserve_protocol import Error, ErrorCode, Result, ResultMany

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORDS = ["[UNK]", "one", "two", "three", "four", "five"]

MODEL_TOML = """
backend = "onnx"
file = "sum.onnx"
max_text_nbytes = 2000
inputs.text = { dtype = "bytes", dims = [-1] }
outputs.total = { dtype = "f4", dims = [-1, 1] }
tokenizer = { file = "tokenizer.json", max_tokens = 32 }
batching = { buckets = [4, 8, 32], max_rows = 16 }
"""


def build(folder: Path) -> Path:
    """A model that adds up the ids of its text's words, "one two" is 3."""
    from onnx import TensorProto, helper, save

    folder.mkdir()
    (folder / "model.toml").write_text(MODEL_TOML)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"])
        for name in ("input_ids", "attention_mask")
    )
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, ["rows", 1])
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["input_ids", "attention_mask"], ["masked"]),
            helper.make_node("Cast", ["masked"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["numbers", "axes"], ["total"], keepdims=1),
        ],
        "sum",
        [ids, mask],
        [total],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(folder / "sum.onnx"))
    return folder


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(str(build(tmp_path_factory.mktemp("repository") / "sum"))) as server:
        yield server


@pytest.fixture
def wire(shared_server: ServerProcess) -> Iterator[Wire]:
    with shared_server.connect() as wire:
        yield wire.bind("sum")
    shared_server.assert_at_rest()


def texts(*words: str) -> bytes:
    """A BYTES tensor in the plain form."""
    encoded = [word.encode() for word in words]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def test_one_text(wire: Wire) -> None:
    wire.send(infer(1, texts("one two three")))
    assert wire.result(1)[0] == 6


def test_texts_of_all_lengths_in_one_write(wire: Wire) -> None:
    """More than one burst and more than one bucket."""
    sentences = {rid: " ".join(WORDS[1 + rid % 5] for _ in range(1 + rid % 20)) for rid in range(1, 201)}
    wire.send(*(infer(rid, texts(text)) for rid, text in sentences.items()))
    for event in wire.receive_many(200):
        assert isinstance(event, Result)
        expected = sum(WORDS.index(word) for word in sentences[event.rid].split())
        assert np.frombuffer(event.payload[:4], np.float32)[0] == expected


def test_several_texts_in_one_request(wire: Wire) -> None:
    wire.send(infer(1, texts("one", "two two", "five five five"), rows=3))
    event = wire.receive()
    assert isinstance(event, Result)
    assert np.frombuffer(event.payload[:12], np.float32).tolist() == [1, 4, 15]


def test_many_texts_each_a_request(wire: Wire) -> None:
    wire.send(infer(100, texts(*["one two"] * 30, "five"), rows=31, many=True))
    found: dict[int, float] = {}
    while len(found) < 31:
        event = wire.receive()
        assert isinstance(event, Result | ResultMany)
        values = np.frombuffer(event.payload[: 4 * event.rows], np.float32)
        found |= dict(zip(range(event.rid, event.rid + event.rows), values.tolist(), strict=True))
    assert found == dict.fromkeys(range(100, 130), 3.0) | {130: 5.0}


@pytest.mark.parametrize(
    "payload, rows, code",
    [
        (struct.pack("<I", 99) + b"one", 1, ErrorCode.INVALID_BYTES),
        (b"\xff\xff\xff\xff", 1, ErrorCode.INVALID_BYTES),
        (texts("one") + b"tail and more of it", 1, ErrorCode.INVALID_SIZE),
        (texts("x" * 2001), 1, ErrorCode.INVALID_BYTES),
        (texts("one"), 2, ErrorCode.INVALID_BYTES),
        (b"", 1, ErrorCode.INVALID_BYTES),
    ],
)
def test_what_is_no_text_is_refused(wire: Wire, payload: bytes, rows: int, code: ErrorCode) -> None:
    wire.send(infer(1, payload, rows=rows), infer(2, texts("two")))
    assert wire.expect_error(code, 1).message
    assert wire.result(2)[0] == 2


def test_text_that_is_no_unicode_fails_alone(wire: Wire) -> None:
    wire.send(infer(1, struct.pack("<I", 2) + b"\xff\xfe"), infer(2, texts("two")))
    answers = {event.rid: event for event in wire.receive_many(2)}
    assert isinstance(answers[1], Error)
    assert answers[1].code == ErrorCode.INVALID_BYTES
    assert isinstance(answers[2], Result)


def test_a_text_longer_than_any_small_body_is_refused_from_its_header(wire: Wire) -> None:
    wire.send(infer(1, texts("x" * 100_000)), infer(2, texts("one")))
    wire.expect_error(ErrorCode.INVALID_BYTES, 1)
    assert wire.result(2)[0] == 1


def test_a_deadline_holds_for_text(wire: Wire) -> None:
    wire.send(*(infer(rid, texts("one " * 30), timeout_us=1) for rid in range(1, 50)))
    events = wire.receive_many(49)
    assert all(isinstance(event, Error) for event in events[5:])
