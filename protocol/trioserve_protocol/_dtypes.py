"""Tensor datatypes of the wire."""

from enum import IntEnum
from typing import Any, Final

import numpy as np


class DType(IntEnum):
    """Datatype numbers; they equal those of Triton's model configuration up to BYTES."""

    BOOL = 1
    U8 = 2
    U16 = 3
    U32 = 4
    U64 = 5
    I8 = 6
    I16 = 7
    I32 = 8
    I64 = 9
    F16 = 10
    F32 = 11
    F64 = 12
    BYTES = 13
    BF16 = 14

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements have no fixed size."""
        return _ITEMSIZE[self]

    @property
    def numpy(self) -> "np.dtype[Any] | None":
        """The little-endian numpy dtype; None for BYTES. BF16 is carried as its 16 raw bits (uint16)."""
        return _NUMPY[self]

    @property
    def label(self) -> str:
        """Name in the Open Inference Protocol, such as `FP32`."""
        return _LABELS[self]

    @classmethod
    def parse(cls, text: str) -> "DType":
        """Return the datatype that `text` names.

        Known are numpy's codes, which count **bytes** (`f4`, `<f4`, `u1`, `i8`), numpy's names
        (`float32`), the Open Inference Protocol's names (`FP32`, `UINT8`) and `bytes`, `string`, `bf16`.
        Codes that count bits (`f32`, `u8` for an octet) are refused: `u8` would mean two things.

        Raises:
            ValueError: No datatype has that name.
        """
        found = _NAMES.get(text.strip().lower().lstrip("<|"))
        if found is None:
            raise ValueError(f"unknown dtype {text!r}; known are {', '.join(_NAMES)}")
        return found


_ROWS: Final = (
    (DType.BOOL, "?", 1, "BOOL", "b1 ? bool"),
    (DType.U8, "<u1", 1, "UINT8", "u1 uint8"),
    (DType.U16, "<u2", 2, "UINT16", "u2 uint16"),
    (DType.U32, "<u4", 4, "UINT32", "u4 uint32"),
    (DType.U64, "<u8", 8, "UINT64", "u8 uint64"),
    (DType.I8, "<i1", 1, "INT8", "i1 int8"),
    (DType.I16, "<i2", 2, "INT16", "i2 int16"),
    (DType.I32, "<i4", 4, "INT32", "i4 int32"),
    (DType.I64, "<i8", 8, "INT64", "i8 int64"),
    (DType.F16, "<f2", 2, "FP16", "f2 float16 fp16"),
    (DType.F32, "<f4", 4, "FP32", "f4 float32 fp32"),
    (DType.F64, "<f8", 8, "FP64", "f8 float64 fp64"),
    (DType.BYTES, "", 0, "BYTES", "bytes string"),
    (DType.BF16, "<u2", 2, "BF16", "bf16 bfloat16"),
)
_NUMPY: Final = {dtype: np.dtype(code) if code else None for dtype, code, *_ in _ROWS}
_ITEMSIZE: Final = {dtype: nbytes for dtype, _, nbytes, *_ in _ROWS}
_LABELS: Final = {dtype: label for dtype, _, _, label, _ in _ROWS}
_NAMES: Final = {name: dtype for dtype, *_, names in _ROWS for name in names.split()}
