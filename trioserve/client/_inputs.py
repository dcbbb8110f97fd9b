"""From what a caller passes as inputs to tensors in the order of the model's signature.

What is accepted, for each input: an array, anything numpy makes an array of, and for BYTES also `str`, `bytes` and
(nested) lists of them. With the batch dimension or without it: the number of dimensions tells. An array that already
has the right datatype and is C-contiguous is sent from its own memory; anything else is converted once, where numpy
calls the conversion `same_kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trioserve.errors import InvalidArgument, InvalidDtype, InvalidShape, TooManyRows, TrioserveError
from trioserve_protocol import (
    NAME_FOLLOWS,
    NAME_PATTERN,
    DType,
    Signature,
    Tag,
    TensorDecl,
    TensorSpec,
    encode_bytes,
    tlv,
)

Array: TypeAlias = npt.NDArray[Any]

_DTYPE_OF = {
    dtype.numpy: dtype for dtype in reversed(DType) if dtype.numpy is not None and dtype is not DType.BF16
}


class InputTensor(NamedTuple):
    """One input, ready to be sent."""

    dtype: DType
    dims: tuple[int, ...]
    """The batch dimension included."""
    data: memoryview | bytes
    """Contiguous bytes; a view of the caller's array where that was possible."""
    nbytes: int
    name: str = ""


class Prepared(NamedTuple):
    """The inputs of one request."""

    tensors: tuple[InputTensor, ...]
    rows: int
    single: bool
    """Whether the caller left the batch dimension out; then the outputs come without it too."""
    nbytes: int
    """Bytes of the payload, padding included."""

    def agrees_with(self, confirmed: Prepared) -> bool:
        """Return whether a server that takes `confirmed` takes these tensors too, by what their description says."""
        return len(self.tensors) == len(confirmed.tensors) and all(
            (mine.dtype, mine.dims) == (theirs.dtype, theirs.dims) and mine.name in ("", theirs.name)
            for mine, theirs in zip(self.tensors, confirmed.tensors, strict=True)
        )

    def describe(self) -> bytes:
        """Return the TLVs TENSOR that describe the payload, for a server to check before it is confirmed."""
        decls = [
            TensorDecl(
                tensor.dtype,
                tensor.dims,
                tensor.nbytes,
                NAME_FOLLOWS if tensor.name else position,
                tensor.name,
            )
            for position, tensor in enumerate(self.tensors)
        ]
        return b"".join(tlv(Tag.TENSOR, decl.encode()) for decl in decls)


def prepare(inputs: object, signature: Signature) -> Prepared:
    """Make the tensors that `signature` asks for.

    Args:
        inputs: A mapping from input name to value; or just the value if the model has one input.
        signature: What the model takes.

    Raises:
        InvalidArgument: inputs are missing, unknown, or disagree about the batch dimension.
        InvalidShape, InvalidDtype, TooManyRows: a value does not fit its input.
    """
    values = _by_name(inputs, signature)
    tensors = tuple(_prepare_one(value, spec) for value, spec in zip(values, signature.inputs, strict=True))
    rows, single = tensors[0][1], tensors[0][2]
    if any(tensor[1:] != (rows, single) for tensor in tensors):
        counts = {spec.name: tensor[1] for spec, tensor in zip(signature.inputs, tensors, strict=True)}
        raise InvalidArgument(f"the inputs disagree about the batch dimension; rows: {counts}")
    if not 0 < rows <= signature.max_rows:
        raise TooManyRows(f"{rows} rows, the model takes 1 to {signature.max_rows}")
    return _prepared(tuple(tensor[0] for tensor in tensors), rows, single=single)


def guess(inputs: object) -> Prepared | None:
    """Make tensors without a signature, from what the values say about themselves.

    The guess is only ever sent together with its description, so a server refuses a wrong one.

    Returns:
        None where a value does not say enough (a list of numbers has no datatype).
    """
    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    if any(name and not (isinstance(name, str) and NAME_PATTERN.fullmatch(name)) for name in named):
        return None
    guessed = [_guess_one(value, name) for name, value in named.items()]
    known = [found for found in guessed if found is not None]
    if not known or len(known) < len(guessed):
        return None
    rows, single = known[0][1], known[0][2]
    if not 0 < rows <= 0xFFFF or any(found[1:] != (rows, single) for found in known):
        return None
    return _prepared(tuple(found[0] for found in known), rows, single=single)


def prepare_columns(inputs: object, signature: Signature) -> tuple[list[Array], int]:
    """Make the columns of many requests of one row each.

    Args:
        inputs: As in `prepare`, always with the batch dimension.
        signature: What the model takes.

    Returns:
        One array for each input, `[n, *row_shape]`, contiguous (BYTES: an object array of `bytes`); and n.

    Raises:
        InvalidArgument, InvalidShape, InvalidDtype: as `prepare`.
    """
    columns: list[Array] = []
    for value, spec in zip(_by_name(inputs, signature), signature.inputs, strict=True):
        column = _elements(value, spec) if spec.dtype is DType.BYTES else _as_array(value, spec)
        if column.ndim != len(spec.dims) or column.shape[1:] != spec.row_shape:
            raise _shape_error(spec, column.shape)
        columns.append(column)
    rows = len(columns[0])
    if any(len(column) != rows for column in columns):
        raise InvalidArgument(
            f"the inputs disagree about the batch dimension; rows: {[len(c) for c in columns]}"
        )
    return columns, rows


def array_bytes(array: Array) -> memoryview:
    """Return the bytes of a C-contiguous array without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def bytes_tensor(elements: Array) -> bytes:
    """Return an object array of `bytes` as the data of a BYTES tensor."""
    return encode_bytes(elements.ravel().tolist())


def _prepared(tensors: tuple[InputTensor, ...], rows: int, *, single: bool) -> Prepared:
    return Prepared(tensors, rows, single, sum((tensor.nbytes + 7) & ~7 for tensor in tensors))


def _by_name(inputs: object, signature: Signature) -> list[object]:
    specs = signature.inputs
    if not isinstance(inputs, Mapping):
        if len(specs) == 1:
            return [inputs]
        names = ", ".join(spec.name for spec in specs)
        raise InvalidArgument(
            f"the model has {len(specs)} inputs ({names}): pass a mapping from name to value"
        )
    wanted = {spec.name for spec in specs}
    given = set(inputs)
    if given != wanted:
        parts = [f"{label} {sorted(map(str, names))}" for label, names in (
            ("missing", wanted - given), ("unknown", given - wanted)) if names]  # fmt: skip
        raise InvalidArgument(f"wrong inputs: {' and '.join(parts)}")
    return [inputs[spec.name] for spec in specs]


def _prepare_one(value: object, spec: TensorSpec) -> tuple[InputTensor, int, bool]:
    found = _elements(value, spec) if spec.dtype is DType.BYTES else _as_array(value, spec)
    shape = found.shape
    single = len(shape) == len(spec.dims) - 1
    dims = (1, *shape) if single else shape
    if len(dims) != len(spec.dims) or dims[1:] != spec.row_shape:
        raise _shape_error(spec, shape)
    data = bytes_tensor(found) if spec.dtype is DType.BYTES else array_bytes(found)
    return InputTensor(spec.dtype, dims, data, len(data), spec.name), dims[0], single


def _guess_one(value: object, name: str) -> tuple[InputTensor, int, bool] | None:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        dtype = _DTYPE_OF.get(value.dtype)
        if dtype is None or not value.ndim or not value.flags.c_contiguous:
            return None
        single = value.ndim == 1
        data: memoryview | bytes = array_bytes(value)
        dims = (1, *value.shape) if single else value.shape
    elif _is_text(value) or (isinstance(value, list | tuple) and value and all(map(_is_text, value))):
        single = _is_text(value)
        elements = [_encoded(value)] if single else [_encoded(text) for text in value]  # type: ignore[attr-defined]
        dtype, dims, data = DType.BYTES, (len(elements),), encode_bytes(elements)
    else:
        return None
    return InputTensor(dtype, dims, data, len(data), name), dims[0], single


def _as_array(value: object, spec: TensorSpec) -> Array:
    """Return `value` as a C-contiguous array of the input's datatype, itself if it is one already."""
    wanted = spec.dtype.numpy
    if wanted is None:
        raise AssertionError("a BYTES tensor has no numpy dtype: this is a bug")
    try:
        array = np.asarray(value)
        if array.dtype == wanted:
            return np.ascontiguousarray(array) if array.ndim else array
        if spec.dtype is DType.BF16 and array.dtype.name == "bfloat16":
            return np.ascontiguousarray(array).view(wanted)
        if (
            array.dtype.kind in "iu"
            and wanted.kind in "iu"
            and not isinstance(value, np.ndarray | np.generic)
        ):
            # Python integers have no width of their own; numpy refuses those that do not fit.
            return np.asarray(value, wanted, order="C")
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"input {spec.name!r}: {error}") from error
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InvalidDtype(
            f"input {spec.name!r} is {array.dtype}, which does not become the model's {wanted} without a loss"
        )
    return np.asarray(array, wanted, order="C")


def _elements(value: object, spec: TensorSpec) -> Array:
    """Return the elements of a BYTES input as an object array of `bytes`, in the shape that was given."""
    if isinstance(value, np.ndarray):
        flat, shape = value.ravel().tolist(), value.shape
    else:
        flat, shape = _flatten(value, spec)
    out = np.empty(len(flat), object)
    for index, element in enumerate(flat):
        if not _is_text(element):
            given = type(element).__name__
            raise InvalidDtype(f"input {spec.name!r} takes str and bytes, element {index} is {given}")
        out[index] = _encoded(element)
    return out.reshape(shape)


def _flatten(value: object, spec: TensorSpec) -> tuple[list[object], tuple[int, ...]]:
    level: list[object] = [value]
    shape: list[int] = []
    while level and isinstance(level[0], list | tuple):
        if not all(isinstance(part, list | tuple) and len(part) == len(level[0]) for part in level):
            raise InvalidShape(f"input {spec.name!r}: the nested lists differ in length")
        shape.append(len(level[0]))
        level = [element for part in level for element in part]  # type: ignore[attr-defined]
    return level, tuple(shape)


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes | bytearray | memoryview)


def _encoded(text: Any) -> bytes:  # noqa: ANN401  what `_is_text` let through
    return text.encode() if isinstance(text, str) else bytes(text)


def _shape_error(spec: TensorSpec, shape: tuple[int, ...]) -> TrioserveError:
    wanted = [str(dim) for dim in spec.row_shape]
    batched = ", ".join(["rows", *wanted])
    return InvalidShape(
        f"input {spec.name!r} has shape {list(shape)}, wanted is [{batched}] or [{', '.join(wanted)}]"
    )
