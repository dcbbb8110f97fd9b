"""What a change of models comes to, before anything is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.execution import ModelReady, ReadyInfo
from trioserve.server._swap import Change, ChangeFailed, Swap, check_ready, key_of, plan, terms_of

X = {"x": TensorConfig("f4", [-1, 4])}


def model(name: str = "m", **facts: Any) -> ModelConfig:
    return ModelConfig(name=name, backend="onnx", file=f"{name}.onnx", inputs=X, outputs=X, **facts)


def text(name: str = "t", **facts: Any) -> ModelConfig:
    tokenizer = TokenizerConfig("tokenizer.json")
    inputs = {"text": TensorConfig("bytes", [-1])}
    return ModelConfig(
        name=name, backend="onnx", file="t.onnx", inputs=inputs, outputs=X, tokenizer=tokenizer, **facts
    )


def lane(config: ModelConfig) -> Any:
    return SimpleNamespace(config=config)


def planned(served: list[Any], wanted: list[ModelConfig], *fresh: ModelConfig) -> Swap:
    change = Change(wanted, {key_of(config) for config in fresh})
    return plan(change, served, ["mark"] * len(wanted))


@pytest.mark.parametrize(
    ("facts", "keeps"),
    [
        ({"sha256": "0" * 64}, True),
        ({"args": {"k": 2}}, True),
        ({"file": "other.onnx", "directory": "/elsewhere"}, True),
        ({"threads": 2}, True),
        ({"slots": 2048}, False),
        ({"default_deadline_ms": 50.0}, False),
        ({"outputs": {"x": TensorConfig("f4", [-1, 8])}}, False),
        ({"batching": BatchingConfig(max_rows=8)}, False),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_model_keeps_its_lane_while_that_would_be_made_the_same(facts: Any, keeps: bool) -> None:  # noqa: FBT001
    before = lane(model())
    after = msgspec.structs.replace(model(), **facts)
    swap = planned([before], [after], after)
    assert swap.seats[0].lane is (before if keeps else None)
    assert swap.retired == ([] if keeps else [before])
    assert not swap.with_texts


def test_another_file_of_the_tokenizer_is_no_other_lane() -> None:
    other = msgspec.structs.replace(text(), tokenizer=TokenizerConfig("new.json", sha256="0" * 64))
    assert terms_of(other) == terms_of(text())
    longer = msgspec.structs.replace(text(), tokenizer=TokenizerConfig("tokenizer.json", max_tokens=64))
    assert terms_of(longer) != terms_of(text())


def test_the_tokenizer_is_replaced_only_for_the_sake_of_a_text_model() -> None:
    served = [lane(model()), lane(text())]
    assert not planned(served, [model(), text()], model()).with_texts
    assert planned(served, [model(), text()], text()).with_texts
    assert planned(served, [model()]).with_texts, "it goes with its last model"


def test_versions_are_models_of_their_own() -> None:
    old, new = lane(model(version=1)), model(version=2)
    swap = planned([old], [new], new)
    assert swap.seats[0].lane is None
    assert swap.retired == [old]
    both = planned([old], [model(version=1), new], new)
    assert [seat.lane for seat in both.seats] == [old, None]
    assert [seat.is_fresh for seat in both.seats] == [False, True]
    assert not both.retired


def info(*ready: ModelReady) -> ReadyInfo:
    return ReadyInfo(1, 1, 1, 1, ready)


def test_a_doubt_counts_against_the_model_that_is_loaded_and_no_other() -> None:
    swap = planned([lane(model("a"))], [model("a"), model("b")], model("b"))
    fine, doubtful = ModelReady("a", 1, {}, ""), ModelReady("b", 1, {}, "", doubt="not finite")
    check_ready(swap, {"executor": info(doubtful, fine)})
    with pytest.raises(ChangeFailed, match="self-test: b: not finite"):
        check_ready(swap, {"executor": info(fine, doubtful)})


@pytest.mark.parametrize("kind", ["executor", "tokenizer"])
def test_a_fault_of_any_model_counts(kind: Any) -> None:
    swap = planned([lane(model("a"))], [model("a"), model("b")], model("b"))
    broken = ModelReady("a", 1, {}, "a: no such file", stage="load")
    with pytest.raises(ChangeFailed, match=r"^load: a: no such file$"):
        check_ready(swap, {kind: info(broken, ModelReady("b", 1, {}, ""))})
