"""What a model must show before it serves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from trioserve.backends import Arrays, Backend, LoadContext, LoadError
from trioserve.config import ModelConfig
from trioserve.execution import WorkerModel
from trioserve.execution._load import load_model
from trioserve.execution._rows import Staging
from trioserve.execution._self_test import self_test
from trioserve.memory import Slab

ROWS = np.arange(80, dtype=np.float32).reshape(20, 4)


class Played(Backend):
    """Makes of its input what the test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.sizes: list[int] = []

    def load(self, ctx: LoadContext) -> None:
        """Nothing to load."""

    def infer(self, inputs: Arrays, out: Arrays) -> Arrays:
        self.sizes.append(len(inputs[0]))
        return (self.answer(inputs[0]),)


@pytest.fixture
def config(affine: WorkerModel, tmp_path: Path) -> ModelConfig:
    """`Affine`, y = 2 x + 1 on rows of four, in a folder of its own."""
    shutil.copy(Path(affine.config.directory, affine.config.file), tmp_path)
    return msgspec.structs.replace(affine.config, directory=str(tmp_path))


def outcome(config: ModelConfig, affine: WorkerModel, answer: Any) -> tuple[str, list[int]]:
    """What is doubtful, and the sizes of the batches that were run."""
    backend = Played(answer)
    staging = Staging(Slab(affine.arena, affine.layout), config.batching.max_rows)
    return self_test(config, backend, staging, ("y",)), backend.sizes


def save(config: ModelConfig, **arrays: Any) -> None:
    np.savez(
        config.file_path.with_suffix(".golden.npz"),
        **{name.replace("_", "."): array for name, array in arrays.items()},
    )


def right(x: Any) -> Any:
    return x * np.float32(2) + np.float32(1)


def test_examples_are_computed_in_batches(config: ModelConfig, affine: WorkerModel) -> None:
    save(config, input_x=ROWS, output_y=right(ROWS))
    assert outcome(config, affine, right) == ("", [16, 4])


def test_examples_that_fail_are_an_error(config: ModelConfig, affine: WorkerModel) -> None:
    wrong = right(ROWS)
    wrong[17, 2] += 1
    save(config, input_x=ROWS, output_y=wrong)
    with pytest.raises(LoadError, match=r"output 'y' is not what is expected, within rtol 0\.001"):
        outcome(config, affine, right)
    save(config, input_x=ROWS, output_y=wrong, atol=2.0)
    assert outcome(config, affine, right)[0] == ""


def test_a_model_that_raises_on_examples_fails(config: ModelConfig, affine: WorkerModel) -> None:
    save(config, input_x=ROWS, output_y=right(ROWS))
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        outcome(config, affine, lambda _: 1 / 0)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"input_x": ROWS}, "expected an array 'output.y', it has input.x"),
        ({"input_x": ROWS, "output_y": ROWS[:3]}, "as many rows in every array"),
        ({"input_x": ROWS.astype("f8"), "output_y": ROWS}, "input.x is float64"),
        ({"input_x": ROWS[:0], "output_y": ROWS[:0]}, "at least one"),
    ],
    ids=["missing", "rows", "datatype", "empty"],
)
def test_examples_must_fit_the_model(
    config: ModelConfig, affine: WorkerModel, arrays: Any, reason: str
) -> None:
    save(config, **arrays)
    with pytest.raises(LoadError, match=reason):
        outcome(config, affine, right)


def test_examples_that_hold_code_are_not_read(config: ModelConfig, affine: WorkerModel) -> None:
    save(config, input_x=np.array([object()]), output_y=ROWS)
    with pytest.raises(LoadError, match="golden"):
        outcome(config, affine, right)


def test_a_damaged_file_of_examples_is_an_error(config: ModelConfig, affine: WorkerModel) -> None:
    config.file_path.with_suffix(".golden.npz").write_bytes(b"PK\3\4 and no more")
    with pytest.raises(LoadError, match="golden"):
        outcome(config, affine, right)


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [
        (right, ""),
        (lambda x: x / np.float32(0), "output 'y' is not finite for a row of zeros"),
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
    ids=["fine", "not finite", "raises"],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_without_examples_zeros_must_give_something(
    config: ModelConfig, affine: WorkerModel, answer: Any, doubt: str
) -> None:
    assert outcome(config, affine, answer)[0] == doubt
    unwarmed = msgspec.structs.replace(config, warmup=False)
    assert outcome(unwarmed, affine, answer) == ("", [])


def test_a_worker_says_how_far_a_model_came(config: ModelConfig, affine: WorkerModel) -> None:
    ready = load_model("executor", config, affine.arena, affine.layout).ready
    assert (ready.error, ready.doubt, ready.stage) == ("", "", "self-test")
    save(config, input_x=ROWS, output_y=ROWS)
    ready = load_model("executor", config, affine.arena, affine.layout).ready
    assert ready.stage == "self-test"
    assert "is not what is expected" in ready.error
    broken = msgspec.structs.replace(config, class_name="Broken")
    assert load_model("executor", broken, affine.arena, affine.layout).ready.stage == "load"
