"""Tensors from the command line: `.npy` files, JSON, text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trioserve_protocol import NAME_FOLLOWS, DType, Tag, TensorDecl, encode_bytes, tlv

_SPEC = re.compile(r"(?:(?P<name>[A-Za-z0-9][\w.-]*)?(?::(?P<dtype>\w+))?=)?(?P<value>.*)", re.DOTALL)


class Tensor(NamedTuple):
    """One input as it will stand in the payload."""

    name: str
    """Empty: named by its position."""
    dtype: DType
    dims: tuple[int, ...]
    data: bytes

    def declare(self, position: int) -> bytes:
        """Return the TLV TENSOR for it."""
        index = NAME_FOLLOWS if self.name else position
        return tlv(Tag.TENSOR, TensorDecl(self.dtype, self.dims, len(self.data), index, self.name).encode())


def parse_tensor(text: str) -> Tensor:
    """Read `[NAME][:DTYPE]=VALUE` or `VALUE`, where VALUE is a `.npy` file or JSON.

    Raises:
        ValueError: it is neither, or no tensor; the message says which.
        OSError: the file cannot be read.
    """
    match = _SPEC.fullmatch(text)
    if match is None:
        raise AssertionError("the pattern takes any text: this is a bug")
    name, dtype, value = match["name"] or "", match["dtype"], match["value"]
    if value.endswith(".npy"):
        array = _load(value)
        return from_values(array if dtype is None else array.astype(DType.parse(dtype).numpy), name=name)
    try:
        decoded = json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is neither a .npy file nor JSON: {error}") from None
    return from_values(decoded, name=name, dtype=dtype)


def from_values(values: Any, *, name: str = "", dtype: str | None = None) -> Tensor:  # noqa: ANN401  any JSON
    """Make a tensor of an array, or of (nested) lists of numbers, booleans or texts, the batch dimension first.

    Args:
        values: They.
        name: Of the input.
        dtype: Of the tensor; None: numbers become F32, or what the array has.
    """
    array = np.asarray(values)
    if not array.ndim:
        raise ValueError("a tensor has a batch dimension: write [5] for one row of 5")
    kind = None if dtype is None else DType.parse(dtype)
    if kind is DType.BYTES or array.dtype.kind in "US":
        elements = [str(element).encode() for element in array.ravel().tolist()]
        return Tensor(name, DType.BYTES, array.shape, encode_bytes(elements))
    if kind is None:
        kind = _dtype_of(array, numbers=not isinstance(values, np.ndarray))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"no tensor can be made of {array.dtype}: rows of one length, numbers or texts")
    return Tensor(name, kind, array.shape, np.ascontiguousarray(array, kind.numpy).tobytes())


def _load(path: str) -> npt.NDArray[Any]:
    """Read a `.npy` file, and no other kind that `np.load` would take or advise to unpickle."""
    try:
        with Path(path).open("rb") as stream:
            array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return array


def from_texts(texts: list[str], *, name: str = "") -> Tensor:
    """Make a BYTES tensor of one text a row."""
    return Tensor(name, DType.BYTES, (len(texts),), encode_bytes(text.encode() for text in texts))


def to_values(dtype: DType, array: npt.NDArray[Any]) -> list[Any]:
    """Return what a tensor holds as JSON can say it; bytes that are no UTF-8 come with escapes."""
    if dtype is DType.BYTES:
        return [element.decode("utf-8", "backslashreplace") for element in array.tolist()]
    values: list[Any] = array.tolist()
    return values


def _dtype_of(array: npt.NDArray[Any], *, numbers: bool) -> DType:
    if numbers and array.dtype.kind in "iuf":
        return DType.F32
    return DType.parse(array.dtype.name)
