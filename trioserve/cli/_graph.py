"""Is an ONNX graph what its model.toml says? Every difference, by key of the file."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trioserve.backends import ELEMENT_TYPES, PACKED_INPUTS, PADDED_INPUTS
from trioserve.cli._table import dtype_text
from trioserve.config import ModelConfig, Problem, TensorConfig
from trioserve_protocol import DType

_TOKEN_INPUTS = {
    "padded": {name: TensorConfig("i8", [-1, -1]) for name in PADDED_INPUTS},
    "packed": {name: TensorConfig("i8", [-1]) for name in PACKED_INPUTS},
}
"""What a graph behind a tokenizer is given, by layout."""

_QUIET = 4
"""ONNX Runtime's log level for nothing but fatal errors: what is wrong is said here, once."""


class _Value(Protocol):
    """What ONNX Runtime says of an input or output."""

    name: str
    type: str
    shape: Sequence[int | str | None]


def can_look() -> bool:
    """Whether ONNX Runtime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


def graph_problems(config: ModelConfig, origin: str) -> list[Problem]:
    """Loads the graph and compares its inputs and outputs with the configuration.

    Args:
        config: A model of the onnx backend whose file exists.
        origin: Where the configuration came from, for the problems.
    """
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = _QUIET
    try:
        session = runtime.InferenceSession(str(config.file_path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its exception classes have no base of their own
        reason = str(error).strip().rpartition("\n")[2]
        return [Problem(origin, "file", "a graph that ONNX Runtime can load", f"{config.file}: {reason}")]
    if config.tokenizer is None:
        inputs = list(_differences("inputs", config.inputs, session.get_inputs()))
    else:
        wanted = _TOKEN_INPUTS[config.batching.layout]
        inputs = list(_differences("batching.layout", wanted, session.get_inputs()))
    outputs = _differences("outputs", config.outputs, session.get_outputs())
    return [Problem(origin, *difference) for difference in (*inputs, *outputs)]


def _differences(
    group: str, wanted: dict[str, TensorConfig], found: Sequence[_Value]
) -> Iterator[tuple[str, str, str, str]]:
    """Problems without their file: key, expected, given, hint. What a graph gives besides is ignored."""
    by_name = {value.name: value for value in found}
    names = ", ".join(by_name)
    for name, tensor in wanted.items():
        if name not in by_name:
            yield f"{group}.{name}", f"a tensor that the graph has: {names}", f'"{name}"', ""
        elif difference := _difference(tensor, by_name[name]):
            yield f"{group}.{name}", f"what the graph has: {difference}", f"{tensor.dtype} {tensor.dims}", ""
    if group != "outputs":
        for name in by_name.keys() - wanted.keys():
            yield group, f"every input that the graph has: {names}", f"no {name}", ""


def _difference(tensor: TensorConfig, value: _Value) -> str:
    """The graph's datatype and shape if they are not the tensor's, else nothing. An open size fits."""
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    dtype = ELEMENT_TYPES.get(value.type)
    fits = len(sizes) == len(tensor.dims) and all(
        size in (-1, wanted) for size, wanted in zip(sizes, tensor.dims, strict=True)
    )
    if fits and dtype is DType.parse(tensor.dtype):
        return ""
    return f"{dtype_text(dtype) if dtype else value.type} {sizes}"
