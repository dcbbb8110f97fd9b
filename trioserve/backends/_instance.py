"""From a model instance in the user's program to a configuration that a worker can load it from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trioserve.backends._model import Model, class_fault, constructor_arguments, model_name
from trioserve.config import BatchingConfig, ConfigError, ModelConfig, TensorConfig, config_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trioserve.backends._model import Tensor


def instance_config(model: Model) -> ModelConfig:
    """The configuration of a model that stands in the user's own program.

    Raises:
        TypeError: A worker process cannot make the model again: its class is not at the top of a file, or its arguments
            are not JSON values. Or the class says no inputs or outputs, or its methods cannot be called with them.
        ConfigError: What the class says of itself is no good configuration.
    """
    cls = type(model)
    if not cls.inputs or not cls.outputs:
        raise TypeError(f"{cls.__name__}: a model says its `inputs` and `outputs`")
    if "<locals>" in cls.__qualname__:
        raise TypeError(
            f"{cls.__qualname__}: the class stands inside a function, where a worker process cannot find it;"
            " move it to the top of its file"
        )
    path = _source_path(cls)
    if fault := class_fault(cls):
        raise TypeError(fault)
    config = ModelConfig(
        name=model_name(cls),
        version=cls.version,
        backend="python",
        file=path.name,
        directory=str(path.parent),
        class_name=cls.__qualname__,
        args=constructor_arguments(model),
        slots=cls.slots,
        default_deadline_ms=cls.default_deadline_ms,
        watchdog_s=cls.watchdog_s,
        threads=cls.threads,
        inputs=_tensors(cls.inputs),
        outputs=_tensors(cls.outputs),
        batching=BatchingConfig(max_rows=cls.max_batch_rows, window_ms=cls.window_ms),
    )
    if problems := config_problems(config, f"{path}, class {cls.__qualname__}"):
        raise ConfigError(problems)
    return config


def _source_path(cls: type[Model]) -> Path:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        raise TypeError(
            f"{cls.__name__}: the class was defined in no file (an interactive session?); a worker process makes the"
            " model again and needs a file to import"
        )
    return Path(file).resolve()


def _tensors(tensors: Mapping[str, Tensor]) -> dict[str, TensorConfig]:
    return {
        name: TensorConfig(dtype=tensor.dtype, dims=list(tensor.dims)) for name, tensor in tensors.items()
    }
