"""What a model that has been loaded must show before it serves: that it computes what its author expects of it.

Beside a model's file may stand its author's examples, `model.golden.npz` beside `model.onnx`: arrays `input.NAME` and
`output.NAME` with as many rows each, and, if the defaults do not fit, the scalars `rtol` and `atol`. Without them, what
the model makes of one row of zeros should be finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

import numpy as np

from trioserve.backends import LoadError, check_outputs
from trioserve.execution._descriptors import StageBatch
from trioserve.execution._rows import TokenRows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from trioserve.backends import Arrays, Backend
    from trioserve.config import ModelConfig
    from trioserve.execution._rows import Staging

GOLDEN_SUFFIX: Final = ".golden.npz"
"""In the place of the suffix of the model's file."""

RTOL: Final = 1e-3
ATOL: Final = 1e-5


def golden_fault(
    path: Path, backend: Backend, staging: Staging, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> str:
    """What is wrong with the model by its author's own examples, or with these; empty if nothing is.

    Args:
        path: Of the examples.
        backend: Loaded.
        staging: Room for one batch.
        inputs: Names of the inputs, in order.
        outputs: Names of the outputs, in order.

    Raises:
        Exception: The model raised.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            golden = dict(file)
        given = [
            _typed(golden, f"input.{name}", array) for name, array in zip(inputs, staging.inputs, strict=True)
        ]
        expected = [
            _typed(golden, f"output.{name}", array)
            for name, array in zip(outputs, staging.outputs, strict=True)
        ]
    except (OSError, ValueError, BadZipFile) as error:
        return f"{path.name}: {error}"
    rows = len(given[0])
    if not rows or {len(array) for array in (*given, *expected)} != {rows}:
        return f"{path.name}: expected as many rows in every array, at least one"
    rtol, atol = float(golden.get("rtol", RTOL)), float(golden.get("atol", ATOL))
    most = len(staging.inputs[0])
    for start in range(0, rows, most):
        part = slice(start, min(start + most, rows))
        places = tuple(array[: part.stop - start] for array in staging.outputs)
        results = backend.infer(tuple(array[part] for array in given), places)
        check_outputs(outputs, results, places)
        for name, result, right in zip(outputs, results, expected, strict=True):
            if not np.allclose(result, right[part], rtol=rtol, atol=atol, equal_nan=True):
                return f"{path.name}: output {name!r} is not what is expected, within rtol {rtol:g} and atol {atol:g}"
    return ""


def _typed(golden: Mapping[str, npt.NDArray[Any]], key: str, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of the file, with the datatype and the row shape that the model has.

    Raises:
        ValueError: It has others, or is missing.
    """
    if key not in golden:
        raise ValueError(f"expected an array {key!r}, it has {', '.join(sorted(golden)) or 'none'}")
    array = golden[key]
    if array.dtype != like.dtype or array.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"{key} is {array.dtype} {list(array.shape)}, expected {like.dtype} {[-1, *like.shape[1:]]}"
        )
    return np.ascontiguousarray(array)


def zeros_fault(config: ModelConfig, backend: Backend, staging: Staging, outputs: tuple[str, ...]) -> str:
    """What is doubtful about the outputs for one row of zeros, or of one token; empty if nothing is.

    Raises:
        Exception: The model raised.
    """
    if config.tokenizer is None:
        inputs = tuple(np.zeros_like(array[:1]) for array in staging.inputs)
    else:
        batch = StageBatch(0, 0, ((0, 1),), np.ones(1, np.uint32))
        inputs = TokenRows(np.ones((1, 1), np.uint32), batch, config.batching.layout).inputs(0, 1)
    places = tuple(array[:1] for array in staging.outputs)
    results: Arrays = backend.infer(inputs, places)
    check_outputs(outputs, results, places)
    for name, result in zip(outputs, results, strict=True):
        if result.dtype.kind == "f" and not np.isfinite(result).all():
            return f"output {name!r} is not finite for a row of zeros"
    return ""


def self_test(config: ModelConfig, backend: Backend, staging: Staging, outputs: tuple[str, ...]) -> str:
    """Tests a loaded model.

    Returns:
        What is doubtful: nothing that a server must not start with, but enough not to replace a model that serves.

    Raises:
        LoadError: It fails its author's own examples.
    """
    path = config.file_path.with_suffix(GOLDEN_SUFFIX)
    if config.tokenizer is None and path.is_file():
        try:
            fault = golden_fault(path, backend, staging, tuple(config.inputs), outputs)
        except Exception as error:
            raise LoadError(f"{config.name}: {path.name}: {type(error).__name__}: {error}") from error
        if fault:
            raise LoadError(f"{config.name}: {fault}")
        return ""
    if not config.warmup:
        return ""
    try:
        return zeros_fault(config, backend, staging, outputs)
    except Exception as error:  # noqa: BLE001  user code: a model may well refuse rows of zeros
        return f"{type(error).__name__}: {error}"
