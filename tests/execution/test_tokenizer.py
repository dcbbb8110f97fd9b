"""The tokenizer stage: bursts of text into token rows, and texts that are none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from trioserve.backends import LoadError
from trioserve.config import ModelConfig, TensorConfig, TokenizerConfig
from trioserve.execution import StageBatch, StageResult
from trioserve.execution._tokenizer import TokenizerRunner, load_tokenizer
from trioserve.memory import Arena, Slab, plan_slab
from trioserve_protocol import DType, ErrorCode, Signature, TensorSpec

WORDS = ["[CLS]", "[SEP]", "[UNK]", "the", "cat", "sat", "on", "mat"]
CLS, SEP, UNK, THE, CAT, SAT, ON, MAT = range(8)


def make_file(path: Path, *, special: bool = True) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
        )
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path))
    return path


def config(folder: Path, **fields: Any) -> ModelConfig:
    options: dict[str, Any] = {"file": "tokenizer.json", "max_tokens": 8} | fields
    return ModelConfig(
        name="t",
        backend="onnx",
        file="t.onnx",
        directory=str(folder),
        inputs={"text": TensorConfig("bytes", [-1])},
        tokenizer=TokenizerConfig(**options),
    )


class Rig:
    def __init__(self, folder: Path) -> None:
        signature = Signature(
            (TensorSpec("text", DType.BYTES, (-1,)),), (TensorSpec("e", DType.F32, (-1, 2)),)
        )
        layout = plan_slab(signature, 20, max_tokens=8, text_nbytes=1000)
        self.arena = Arena.create(layout.total_nbytes, "test")
        self.slab = Slab(self.arena, layout)
        self.slab.poison(0, 20)
        self.runner: TokenizerRunner = load_tokenizer(config(folder), self.slab)

    def run(self, texts: list[bytes], *ranges: tuple[int, int]) -> StageResult:
        """Tokenize texts that stand in the text region with a gap between them, in reverse order."""
        offsets, at = [0] * len(texts), 3
        for position in reversed(range(len(texts))):
            text = texts[position]
            self.slab.text[at : at + len(text)] = text
            offsets[position] = at
            at += len(text) + 2
        lengths = np.array([len(text) for text in texts], np.uint32)
        return self.runner.run(StageBatch(0, 1, ranges, lengths, np.array(offsets, np.uint32)))

    def ids(self, result: StageResult, *slots: int) -> list[list[int]]:
        assert result.lengths is not None
        return [
            self.slab.tokens[slot, :length].tolist()
            for slot, length in zip(slots, result.lengths.tolist(), strict=True)
        ]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    make_file(tmp_path / "tokenizer.json")
    made = Rig(tmp_path)
    yield made
    made.arena.close()


def test_ids_stand_in_the_rows_of_their_texts(rig: Rig) -> None:
    texts = [b"the cat sat", b"", b"mat", b"the dog"]
    result = rig.run(texts, (9, 1), (4, 3))
    assert result.failures == ()
    assert rig.ids(result, 9, 4, 5, 6) == [
        [CLS, THE, CAT, SAT, SEP],
        [CLS, SEP],
        [CLS, MAT, SEP],
        [CLS, THE, UNK, SEP],
    ]
    assert (rig.slab.tokens[10:].view(np.uint8) == 0xA5).all()
    assert (rig.slab.tokens[7:9].view(np.uint8) == 0xA5).all()


def test_the_files_own_padding_and_truncation_are_not_used(rig: Rig) -> None:
    result = rig.run([b"the cat sat on the mat the cat sat on the mat", b"the cat sat on the"], (0, 2))
    assert rig.ids(result, 0, 1) == [
        [CLS, THE, CAT, SAT, ON, THE, MAT, SEP],
        [CLS, THE, CAT, SAT, ON, THE, SEP],
    ]


def test_what_is_not_utf8_fails_alone(rig: Rig) -> None:
    result = rig.run([b"the", b"the \xff cat", "die Käse".encode(), b"\xed\xa0\x80"], (0, 4))
    assert [(row, code) for row, code, _ in result.failures] == [
        (1, int(ErrorCode.INVALID_BYTES)),
        (3, int(ErrorCode.INVALID_BYTES)),
    ]
    assert result.failures[0][2] == "the text is not UTF-8: invalid start byte at byte 4"
    assert rig.ids(result, 0, 1, 2, 3) == [[CLS, THE, SEP], [], [CLS, UNK, UNK, SEP], []]


def test_a_text_without_tokens_fails_alone(tmp_path: Path) -> None:
    make_file(tmp_path / "tokenizer.json", special=False)
    rig = Rig(tmp_path)
    result = rig.run([b"cat", b"", b" "], (0, 3))
    assert result.failures == tuple(
        (row, int(ErrorCode.INVALID_ARGUMENT), "the text has no tokens") for row in (1, 2)
    )
    assert rig.ids(result, 0, 1, 2) == [[CAT], [], []]
    rig.arena.close()


class Faulty:
    """Cannot encode bursts, nor the word `mat`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode_batch_fast(self, texts: list[str]) -> None:
        raise RuntimeError(f"{len(texts)} texts are too many")

    def encode(self, text: str) -> Any:
        if "mat" in text:
            raise RuntimeError("no mats")
        return self.tokenizer.encode(text)


def test_a_failing_burst_is_encoded_one_by_one(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.runner._tokenizer = Faulty(rig.runner._tokenizer)
    result = rig.run([b"cat", b"mat", b"\xff"], (0, 3))
    assert [code for _, code, _ in result.failures] == [
        int(ErrorCode.MODEL_RAISED),
        int(ErrorCode.INVALID_BYTES),
    ]
    assert rig.ids(result, 0, 1, 2) == [[CLS, CAT, SEP], [], []]
    assert "3 texts are too many" in capsys.readouterr().err


def test_warm_up_measures_bursts(rig: Rig) -> None:
    took, deviation_ns = rig.runner.warm_up()
    assert took.keys() == deviation_ns.keys()
    assert list(took) == [1, 32]
    assert all(ns > 0 for ns in took.values())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"file": "absent.json"}, r"absent\.json: no such file"),
        ({"file": "garbage.json"}, r"garbage\.json: not a tokenizer"),
        ({"sha256": "0" * 64}, "the file is not the one configured"),
    ],
)
def test_what_cannot_be_loaded_is_said(tmp_path: Path, fields: dict[str, Any], match: str) -> None:
    make_file(tmp_path / "tokenizer.json")
    (tmp_path / "garbage.json").write_text("{}")
    rig = Rig(tmp_path)
    with pytest.raises(LoadError, match=match):
        load_tokenizer(config(tmp_path, **fields), rig.slab)
    rig.arena.close()
