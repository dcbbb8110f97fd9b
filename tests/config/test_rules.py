"""What keys must be together."""

from __future__ import annotations

from typing import Any

import pytest

from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig, model_problems

F4 = TensorConfig("f4", [-1, 4])
TEXT = TensorConfig("bytes", [-1])


def onnx(**changes: Any) -> ModelConfig:
    defaults: dict[str, Any] = {
        "name": "m",
        "backend": "onnx",
        "file": "m.onnx",
        "inputs": {"x": F4},
        "outputs": {"y": F4},
    }
    return ModelConfig(**{**defaults, **changes})


def text(**changes: Any) -> ModelConfig:
    return onnx(**{"inputs": {"text": TEXT}, "tokenizer": TokenizerConfig("t.json"), **changes})


@pytest.mark.parametrize(
    "config",
    [
        onnx(),
        onnx(name="A.b-c_9"),
        text(),
        text(batching=BatchingConfig(layout="packed", max_tokens=64, buckets=[256])),
        ModelConfig(name="m", backend="python", file="m.py"),
        ModelConfig(name="m", backend="python", file="m.py", class_name="M", args={"size": 3}),
    ],
)
def test_good(config: ModelConfig) -> None:
    assert model_problems(config, "f") == []


@pytest.mark.parametrize(
    "config, key, words",
    [
        (onnx(name="../m"), "name", "a letter or digit"),
        (onnx(name="m" * 65), "name", "63"),
        (onnx(name="é"), "name", "letter"),
        (onnx(name=""), "name", "letter"),
        (onnx(file="m.py"), "file", "a .onnx file"),
        (ModelConfig(name="m", backend="python", file="m.onnx"), "file", "a .py file"),
        (onnx(inputs={}), "inputs", "at least one"),
        (onnx(outputs={}), "outputs", "at least one"),
        (onnx(class_name="M"), "class", "no such key"),
        (onnx(args={"a": 1}), "args", "no such key"),
        (onnx(inputs={"x y": F4}), "inputs.x y", "a name"),
        (onnx(inputs={"x": TensorConfig("f3", [-1])}), "inputs.x.dtype", "a datatype such as"),
        (onnx(inputs={"x": TensorConfig("f4", [1, 4])}), "inputs.x.dims", "-1 as the first"),
        (onnx(inputs={"x": TensorConfig("f4", [-1, -1])}), "inputs.x.dims", "fixed sizes"),
        (onnx(outputs={"y": TensorConfig("f4", [-1, 0])}), "outputs.y.dims", "fixed sizes"),
        (onnx(inputs={"x": TensorConfig("f8", [-1, 1 << 20, 1 << 20])}), "inputs.x.dims", "bytes a row"),
        (onnx(inputs={"x": TEXT}), "inputs.x.dtype", "no tokenizer"),
        (onnx(outputs={"y": TEXT}), "outputs.y.dtype", "fixed size"),
        (text(inputs={"x": F4}), "inputs", "exactly one"),
        (text(inputs={"a": TEXT, "b": TEXT}), "inputs", "exactly one"),
        (text(inputs={"a": TensorConfig("bytes", [-1, 2])}), "inputs", "exactly one"),
        (onnx(slots=8), "batching.max_rows", "at most slots"),
        (onnx(batching=BatchingConfig(layout="packed")), "batching.layout", "no tokenizer"),
        (onnx(batching=BatchingConfig(max_tokens=8)), "batching.max_tokens", "no tokenizer"),
        (text(batching=BatchingConfig(max_rows=1_001)), "batching.max_rows", "a tokenizer"),
        (text(batching=BatchingConfig(buckets=[])), "batching.buckets", "ascending"),
        (text(batching=BatchingConfig(buckets=[16, 16, 256])), "batching.buckets", "ascending"),
        (text(batching=BatchingConfig(buckets=[16, 128])), "batching.buckets", "a last bucket"),
    ],
)
def test_bad(config: ModelConfig, key: str, words: str) -> None:
    [problem] = model_problems(config, "m/model.toml")
    assert (problem.file, problem.key) == ("m/model.toml", key)
    assert words in problem.expected


def test_unknown_datatype_gets_a_suggestion() -> None:
    [problem] = model_problems(onnx(inputs={"x": TensorConfig("byts", [-1])}), "f")
    assert problem.hint == 'did you mean "bytes"?'


def test_text_model_without_inputs() -> None:
    problems = model_problems(text(inputs={}), "f")
    assert {problem.key for problem in problems} == {"inputs"}
