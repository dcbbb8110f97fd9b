"""Model configurations travel as JSON and know where their files are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trioserve.batching import POLICY_NAMES
from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.config._decode import decode

CONFIG = ModelConfig(
    name="m",
    backend="python",
    file="m.py",
    class_name="M",
    args={"sizes": [1, 2.5, None, {"deep": True}]},
    inputs={"b": TensorConfig("f4", [-1, 4]), "a": TensorConfig("i8", [-1])},
    tokenizer=TokenizerConfig("t.json"),
    batching=BatchingConfig(layout="packed"),
    directory="/models/m",
)


def test_json_round_trip_keeps_everything_in_order() -> None:
    again = ModelConfig.from_json(CONFIG.to_json())
    assert again == CONFIG
    assert list(again.inputs) == ["b", "a"]
    assert msgspec.json.decode(CONFIG.to_json())["class"] == "M"


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        ModelConfig.from_json(b'{"name": "m", "backend": "python", "file": "m.py", "colour": 1}')


def test_paths() -> None:
    assert CONFIG.file_path == Path("/models/m/m.py")
    assert CONFIG.tokenizer_path == Path("/models/m/t.json")
    assert msgspec.structs.replace(CONFIG, tokenizer=None).tokenizer_path is None


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        CONFIG.name = "n"  # type: ignore[misc]


def test_a_wrong_shadow_is_told_what_there_is() -> None:
    _, [problem] = decode(BatchingConfig, {"shadows": ["best"]}, lambda _: "model.toml")
    assert problem.given == '["best"]'
    for name in POLICY_NAMES:
        assert name in problem.expected


def test_a_shadow_may_be_any_policy_that_has_a_name() -> None:
    for name in POLICY_NAMES:
        for shadow in (name, f"{name}:0.5"):
            data = msgspec.json.encode({"shadows": [shadow]})
            assert msgspec.json.decode(data, type=BatchingConfig).shadows == [shadow]
    for shadow in ("best", "fixed:", "fixed:x", "fixed:1000.5x", "Greedy"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({"shadows": [shadow]}), type=BatchingConfig)
