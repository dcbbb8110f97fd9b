"""Tensor datatypes of the wire."""

from enum import IntEnum, unique
from typing import Any, Final, Self

import numpy as np


@unique
class DType(IntEnum):
    """Datatype numbers; up to BYTES they equal those of Triton's model configuration.

    Attributes:
        itemsize: Bytes of one element; 0 for BYTES, whose elements have no fixed size.
        numpy: The little-endian numpy dtype; None for BYTES. BF16 is carried as its 16 raw bits, uint16.
        label: Name in the Open Inference Protocol, such as `FP32`.
        names: What `parse` accepts.
    """

    itemsize: int
    numpy: "np.dtype[Any] | None"
    label: str
    names: tuple[str, ...]

    def __new__(cls, number: int, code: str, label: str, names: str) -> Self:
        """Make a member of its row in the table below."""
        dtype = int.__new__(cls, number)
        dtype._value_ = number
        dtype.numpy = np.dtype(code) if code else None
        dtype.itemsize = dtype.numpy.itemsize if dtype.numpy is not None else 0
        dtype.label = label
        dtype.names = tuple(names.split())
        return dtype

    # number, numpy code, name in the Open Inference Protocol, accepted names
    BOOL = 1, "?", "BOOL", "bool b1 ?"
    U8 = 2, "<u1", "UINT8", "uint8 u1"
    U16 = 3, "<u2", "UINT16", "uint16 u2"
    U32 = 4, "<u4", "UINT32", "uint32 u4"
    U64 = 5, "<u8", "UINT64", "uint64 u8"
    I8 = 6, "<i1", "INT8", "int8 i1"
    I16 = 7, "<i2", "INT16", "int16 i2"
    I32 = 8, "<i4", "INT32", "int32 i4"
    I64 = 9, "<i8", "INT64", "int64 i8"
    F16 = 10, "<f2", "FP16", "fp16 float16 f2"
    F32 = 11, "<f4", "FP32", "fp32 float32 f4"
    F64 = 12, "<f8", "FP64", "fp64 float64 f8"
    BYTES = 13, "", "BYTES", "bytes string"
    BF16 = 14, "<u2", "BF16", "bf16 bfloat16"

    @classmethod
    def parse(cls, text: str) -> "DType":
        """Return the datatype that `text` names; case does not matter.

        Known are numpy's codes, which count **bytes** (`f4`, `<f4`, `u1`, `i8`), numpy's names (`float32`), the
        Open Inference Protocol's names (`FP32`, `UINT8`), `bytes`, `string` and `bf16`. Codes that count bits
        (`f32`) are refused: `u8` would mean two things.

        Raises:
            ValueError: No datatype has that name.
        """
        found = _BY_NAME.get(text.strip().lower().lstrip("<|"))
        if found is None:
            raise ValueError(f"unknown dtype {text!r}; known are {', '.join(_BY_NAME)}")
        return found


def dtype_of(number: int) -> DType | None:
    """Return the datatype of a number on the wire; None if there is none."""
    return _BY_NUMBER.get(number)


_BY_NUMBER: Final = {int(dtype): dtype for dtype in DType}
_BY_NAME: Final = {name: dtype for dtype in DType for name in dtype.names}
