"""What the keys of a model must be together, beyond the range of each: pure checks on a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from trioserve.config._decode import decode
from trioserve.config._model import MODEL_NAME, TENSOR_NAME, ModelConfig, TensorConfig
from trioserve.config._problem import Problem, did_you_mean, shown
from trioserve_protocol import DType

MAX_ROW_NBYTES = 64 << 20
"""Largest row of one tensor in bytes: the largest body a frame may have by default."""

MAX_TEXT_BATCH_ROWS = 1_000
"""Largest batch of a model with a tokenizer: a message of 16 KiB holds up to 16 bytes a row for it, where its text lies
and how long it is on the way there, its tokens and its fault on the way back."""

DTYPE_EXAMPLES = ("bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "bf16", "bytes")

_Fault = tuple[str, str, str, str]
"""key, expected, given, hint"""


def model_problems(config: ModelConfig, file: str) -> list[Problem]:
    """Everything that is wrong with a configuration whose single values are right.

    Args:
        config: The configuration; its files are not looked at.
        file: Where it came from, for the problems.

    Returns:
        The problems, empty if there are none.
    """
    rules: tuple[Callable[[ModelConfig], Iterator[_Fault]], ...] = (
        _names,
        _backend,
        _tensors,
        _text,
        _batching,
    )
    return [Problem(file, *fault) for rule in rules for fault in rule(config)]


def config_problems(config: ModelConfig, file: str) -> list[Problem]:
    """Everything that is wrong with a configuration that was made in Python, where nothing has checked its values.

    Arguments and result as in `model_problems`.
    """
    table = {key: value for key, value in msgspec.to_builtins(config).items() if value is not None}
    _, problems = decode(ModelConfig, table, lambda _: file)
    return problems or model_problems(config, file)


def _names(config: ModelConfig) -> Iterator[_Fault]:
    if not MODEL_NAME.fullmatch(config.name):
        expected = "a letter or digit, then up to 63 letters, digits, '_', '.' or '-'"
        yield "name", expected, shown(config.name), ""


def _backend(config: ModelConfig) -> Iterator[_Fault]:
    suffix = {"python": ".py", "onnx": ".onnx"}[config.backend]
    if not config.file.endswith(suffix):
        yield "file", f"a {suffix} file, because backend is {shown(config.backend)}", shown(config.file), ""
    if config.backend == "python":
        return
    for key, tensors in (("inputs", config.inputs), ("outputs", config.outputs)):
        if not tensors:
            yield (
                key,
                "at least one tensor",
                "nothing",
                f'for example [{key}.x] with dtype = "f4" and dims = [-1, 128]',
            )
    if config.class_name:
        yield "class", 'no such key, because backend is "onnx"', shown(config.class_name), ""
    if config.args:
        yield "args", 'no such key, because backend is "onnx"', shown(config.args), ""


def _tensors(config: ModelConfig) -> Iterator[_Fault]:
    for group, tensors in (("inputs", config.inputs), ("outputs", config.outputs)):
        for name, tensor in tensors.items():
            key = f"{group}.{name}"
            if not TENSOR_NAME.fullmatch(name):
                yield (
                    key,
                    "a name of up to 64 letters, digits and '_' that does not start with a digit",
                    shown(name),
                    "",
                )
            yield from _tensor(key, tensor)


def _tensor(key: str, tensor: TensorConfig) -> Iterator[_Fault]:
    try:
        dtype = DType.parse(tensor.dtype)
    except ValueError:
        known = ", ".join(DTYPE_EXAMPLES)
        yield (
            f"{key}.dtype",
            f"a datatype such as {known}",
            shown(tensor.dtype),
            did_you_mean(tensor.dtype, DTYPE_EXAMPLES),
        )
        return
    first, *rest = tensor.dims
    if first != -1:
        yield f"{key}.dims", "-1 as the first dimension: the rows of the batch", shown(tensor.dims), ""
    if any(size < 1 for size in rest):
        hint = "a tensor whose length varies is text: give the model a tokenizer and a bytes input"
        yield f"{key}.dims", "fixed sizes of at least 1 after the first dimension", shown(tensor.dims), hint
        return
    row_nbytes = dtype.itemsize
    for size in rest:
        row_nbytes *= size
    if row_nbytes > MAX_ROW_NBYTES:
        yield f"{key}.dims", f"at most {MAX_ROW_NBYTES:,} bytes a row", f"{row_nbytes:,} bytes", ""


def _is_bytes(tensor: TensorConfig) -> bool:
    try:
        return DType.parse(tensor.dtype) is DType.BYTES
    except ValueError:
        return False


def _text(config: ModelConfig) -> Iterator[_Fault]:
    for name, tensor in config.outputs.items():
        if _is_bytes(tensor):
            yield f"outputs.{name}.dtype", "a datatype of fixed size", shown(tensor.dtype), ""
    texts = [name for name, tensor in config.inputs.items() if _is_bytes(tensor)]
    if config.tokenizer is None:
        for name in texts:
            hint = "add a [tokenizer] table with its file"
            yield (
                f"inputs.{name}.dtype",
                "a datatype of fixed size, because there is no tokenizer",
                '"bytes"',
                hint,
            )
    elif len(config.inputs) != 1 or len(texts) != 1 or config.inputs[texts[0]].dims != [-1]:
        expected = 'exactly one tensor with dtype = "bytes" and dims = [-1], because there is a tokenizer'
        given = ", ".join(
            f"{name} {tensor.dtype} {shown(tensor.dims)}" for name, tensor in config.inputs.items()
        )
        yield "inputs", expected, given or "nothing", ""


def _batching(config: ModelConfig) -> Iterator[_Fault]:
    batching = config.batching
    if batching.max_rows > config.slots:
        yield "batching.max_rows", f"at most slots, which is {config.slots}", shown(batching.max_rows), ""
    if config.tokenizer is None:
        if batching.layout == "packed":
            yield "batching.layout", '"padded", because there is no tokenizer', '"packed"', ""
        if batching.max_tokens:
            yield "batching.max_tokens", "0, because there is no tokenizer", shown(batching.max_tokens), ""
        return
    if batching.max_rows > MAX_TEXT_BATCH_ROWS:
        expected = f"at most {MAX_TEXT_BATCH_ROWS:,}, because there is a tokenizer"
        yield "batching.max_rows", expected, shown(batching.max_rows), ""
    buckets = batching.buckets
    if not buckets or any(low >= high for low, high in pairwise(buckets)):
        yield "batching.buckets", "at least one length, ascending", shown(buckets), ""
    elif buckets[-1] < config.tokenizer.max_tokens:
        expected = f"a last bucket of at least tokenizer.max_tokens, which is {config.tokenizer.max_tokens}"
        yield "batching.buckets", expected, shown(buckets), ""
