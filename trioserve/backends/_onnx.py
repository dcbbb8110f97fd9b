"""ONNX graphs on the CPU, by ONNX Runtime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol

from trioserve.backends._base import Arrays, Backend, LoadContext, LoadError
from trioserve.backends._files import verify_sha256
from trioserve_protocol import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve_protocol import TensorSpec

BIND_NBYTES: Final = 131_072
"""Outputs of at least this many bytes are written straight into the slab. Binding costs 6 us a call more than
letting the runtime allocate, which is what it takes to copy about this much (measured with ONNX Runtime 1.32)."""

ELEMENT_TYPES: Final = {
    "tensor(bool)": DType.BOOL,
    "tensor(uint8)": DType.U8,
    "tensor(uint16)": DType.U16,
    "tensor(uint32)": DType.U32,
    "tensor(uint64)": DType.U64,
    "tensor(int8)": DType.I8,
    "tensor(int16)": DType.I16,
    "tensor(int32)": DType.I32,
    "tensor(int64)": DType.I64,
    "tensor(float16)": DType.F16,
    "tensor(float)": DType.F32,
    "tensor(double)": DType.F64,
}
"""Datatypes by the names ONNX Runtime has for them. A graph's strings and bfloat16 cannot be served."""


class _Value(Protocol):
    """What ONNX Runtime says of an input or output."""

    name: str
    type: str
    shape: list[int | str | None]


class OnnxBackend(Backend):
    """Runs one session. Needs `onnxruntime` (extra `onnx`), imported by `load`."""

    def __init__(self) -> None:
        """Nothing is imported before `load`."""
        self._session: Any = None
        self._options: Any = None
        self._input_names: tuple[str, ...] = ()
        self._output_names: list[str] = []

    def load(self, ctx: LoadContext) -> None:
        """Check the file and its graph against the configuration, and make the session."""
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise LoadError(
                f"{ctx.name}: backend onnx needs the package onnxruntime (the extra trioserve[onnx]): {error}"
            ) from error
        path = ctx.path(ctx.config.file)
        verify_sha256(path, ctx.config.sha256)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = ctx.threads
        options.inter_op_num_threads = 1
        # Spinning threads take the core from the server, and from the other models on the machine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise LoadError(
                f"{ctx.name}: {path.name} is not a graph ONNX Runtime can load: {error}"
            ) from error
        _check_graph(ctx, session.get_inputs(), session.get_outputs())
        self._session = session
        self._options = runtime.RunOptions()
        self._input_names = ctx.input_names
        self._output_names = [spec.name for spec in ctx.signature.outputs]

    def infer(self, inputs: Arrays, out: Arrays) -> Arrays:
        """Run the graph; outputs that are large go straight into `out`."""
        feed = dict(zip(self._input_names, inputs, strict=True))
        if sum([array.nbytes for array in out]) < BIND_NBYTES:
            return tuple(self._session.run(self._output_names, feed, self._options))
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name, array in zip(self._output_names, out, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._session.run_with_iobinding(binding, self._options)
        return out

    def interrupt(self) -> None:
        """The runtime looks between two nodes of the graph: a single large one runs to its end."""
        self._options.terminate = True

    def resume(self) -> None:
        """Without this every later run would end at its first node."""
        self._options.terminate = False

    def close(self) -> None:
        """Drop the session with its threads and its memory arena."""
        self._session = None


def _check_graph(ctx: LoadContext, inputs: Sequence[_Value], outputs: Sequence[_Value]) -> None:
    """Compare the graph with the configuration.

    Raises:
        LoadError: They differ. Found here it is one clear line; found by a batch it would be the client's riddle.
    """
    found_outputs = {value.name: value for value in outputs}
    for spec in ctx.signature.outputs:
        if spec.name not in found_outputs:
            raise LoadError(f"{ctx.name}: the graph has outputs {sorted(found_outputs)}, not {spec.name!r}")
        _check_value(ctx.name, "output", found_outputs[spec.name], spec.dtype, spec.dims)
    found_inputs = {value.name: value for value in inputs}
    if found_inputs.keys() != set(ctx.input_names):
        raise LoadError(
            f"{ctx.name}: the graph has inputs {sorted(found_inputs)}, expected {sorted(ctx.input_names)}"
        )
    for name, dtype, dims in _expected_inputs(ctx):
        _check_value(ctx.name, "input", found_inputs[name], dtype, dims)


def _expected_inputs(ctx: LoadContext) -> list[tuple[str, DType, tuple[int, ...]]]:
    specs: tuple[TensorSpec, ...] = ctx.signature.inputs
    if ctx.config.tokenizer is None:
        return [(spec.name, spec.dtype, spec.dims) for spec in specs]
    dims = (-1,) if ctx.config.batching.layout == "packed" else (-1, -1)
    return [(name, DType.I64, dims) for name in ctx.input_names]


def _check_value(model: str, side: str, value: _Value, dtype: DType, dims: tuple[int, ...]) -> None:
    if ELEMENT_TYPES.get(value.type) is not dtype:
        raise LoadError(f"{model}: {side} {value.name!r} of the graph is {value.type}, expected {dtype.name}")
    if len(value.shape) != len(dims):
        raise LoadError(
            f"{model}: {side} {value.name!r} of the graph has shape {value.shape}, expected {list(dims)}"
        )
    for axis, (actual, expected) in enumerate(zip(value.shape, dims, strict=True)):
        if expected == -1 and isinstance(actual, int):
            raise LoadError(
                f"{model}: axis {axis} of {side} {value.name!r} is fixed at {actual} in the graph; it must be symbolic"
            )
        if expected != -1 and isinstance(actual, int) and actual != expected:
            raise LoadError(
                f"{model}: axis {axis} of {side} {value.name!r} is {actual} in the graph, expected {expected}"
            )
