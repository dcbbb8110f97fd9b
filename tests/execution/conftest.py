"""Models over arenas of their own, loaded or ready to be loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trioserve.backends import class_signature, load_class
from trioserve.config import BatchingConfig, ModelConfig
from trioserve.execution import WorkerModel
from trioserve.memory import Arena, Slab, plan_slab

MODELS = Path(__file__).parents[1] / "backends" / "models.py"

MakeModel = Callable[..., WorkerModel]


@pytest.fixture
def make_model() -> Iterator[MakeModel]:
    """`make_model("Affine", slots=64, args={...})`: a model of the tests' file with an arena of its own."""
    arenas: list[Arena] = []

    def make(
        class_name: str = "Affine", *, slots: int = 64, max_rows: int = 16, **fields: Any
    ) -> WorkerModel:
        config = ModelConfig(
            name=class_name.lower(),
            backend="python",
            file=MODELS.name,
            class_name=class_name,
            directory=str(MODELS.parent),
            slots=slots,
            batching=BatchingConfig(max_rows=max_rows),
            **fields,
        )
        if not config.inputs:
            cls = load_class(config)
            instance = {name: tensors_of(getattr(cls, name)) for name in ("inputs", "outputs")}
            return make(class_name, slots=slots, max_rows=max_rows, **fields | instance)
        layout = plan_slab(class_signature(load_class(config), config), slots)
        arenas.append(Arena.create(layout.total_nbytes, "test"))
        return WorkerModel(config, layout, arenas[-1])

    yield make
    for arena in arenas:
        arena.close()


def tensors_of(tensors: dict[str, Any]) -> dict[str, Any]:
    from trioserve.config import TensorConfig

    return {name: TensorConfig(tensor.dtype, list(tensor.dims)) for name, tensor in tensors.items()}


@pytest.fixture
def affine(make_model: MakeModel) -> WorkerModel:
    """The plain model, its input rows filled with their slot's number, everything else poisoned."""
    model = make_model()
    fill(Slab(model.arena, model.layout))
    return model


def fill(slab: Slab) -> None:
    slab.poison(0, slab.layout.slots)
    slab.inputs[0][...] = np.arange(slab.layout.slots)[:, None]
