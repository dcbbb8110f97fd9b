"""Arenas and slabs of the models of a server."""

from __future__ import annotations

import os

import pytest

from trioserve.backends import LoadError
from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.server._memory import MIN_BLOCKS, ServerMemory, layout_of

X = {"x": TensorConfig("f4", [-1, 4])}


def model(name: str = "m", *, slots: int = 100, max_rows: int = 32, dtype: str = "f4") -> ModelConfig:
    return ModelConfig(
        name=name, backend="python", file="m.py", slots=slots, inputs={"x": TensorConfig(dtype, [-1, 4])},
        outputs=X, batching=BatchingConfig(max_rows=max_rows),
    )  # fmt: skip


@pytest.mark.parametrize(
    "slots, max_rows, planned", [(100, 32, 160), (1024, 32, 1024), (1025, 32, 1056), (8, 8, 8 * MIN_BLOCKS)]
)
def test_slots_are_whole_batches_and_some_of_them(slots: int, max_rows: int, planned: int) -> None:
    assert layout_of(model(slots=slots, max_rows=max_rows)).slots == planned


def test_a_text_model_has_rows_of_tokens_and_room_for_texts() -> None:
    config = ModelConfig(
        name="t", backend="onnx", file="t.onnx", inputs={"text": TensorConfig("bytes", [-1])}, outputs=X,
        tokenizer=TokenizerConfig("tokenizer.json", max_tokens=77), max_text_nbytes=200_000,
    )  # fmt: skip
    layout = layout_of(config)
    assert layout.max_tokens == 77
    assert layout.text_nbytes >= 16 * 200_000


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_leaving_the_block_gives_everything_back() -> None:
    before = descriptors()
    with ServerMemory([model("a"), model("b")]) as memory:
        assert [slab.inputs[0].shape for slab in memory.slabs] == [(160, 4)] * 2
        assert descriptors() > before
    assert descriptors() == before


def test_a_model_without_a_signature_leaves_nothing_of_the_others() -> None:
    before = descriptors()
    with pytest.raises(LoadError), ServerMemory([model("a"), model("b", dtype="nonsense")]):
        pass
    assert descriptors() == before
