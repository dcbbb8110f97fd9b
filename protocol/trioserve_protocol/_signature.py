"""What a model takes and gives: tensor specifications and their binary form (value of TLV SIGNATURE)."""

import re
from dataclasses import dataclass, field
from math import prod
from struct import Struct
from struct import error as StructError  # noqa: N812 - the exception is a class, whatever its spelling
from typing import Final, NamedTuple

from ._codes import ErrorCode
from ._dtypes import DType, dtype_of
from ._errors import LocalProtocolError, RemoteProtocolError
from ._header import pad8
from ._limits import DEFAULT_LIMITS, Limits

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Grammar of model, tenant and tensor names: ASCII, at most 64 characters, no path separator."""

_HEAD: Final = Struct("<IHHHHI")
_TENSOR: Final = Struct("<BBHI")
_MAX_DIM: Final = 0x7FFF_FFFF


class TensorSpec(NamedTuple):
    """Name, datatype and shape of an input or output.

    `dims` include the leading batch dimension, which is -1; the others are fixed and positive.
    A BYTES tensor of dims (-1, k) has k elements a row, one of dims (-1,) has one.
    """

    name: str
    dtype: DType
    dims: tuple[int, ...]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.dims[1:]

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return prod(self.dims[1:])

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row; 0 for BYTES, whose rows have no fixed size."""
        return prod(self.dims[1:]) * self.dtype.itemsize


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one version of a model, in the order in which payloads carry them.

    Raises:
        LocalProtocolError: A name, shape or number is outside the protocol's grammar.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    version: int = 1
    """The model's version, 1 to 2^32 - 1."""
    max_rows: int = 0xFFFF
    """Most rows of one INFER, 1 to 65,535."""
    fixed_inputs: bool = field(init=False, repr=False, compare=False)
    """True if no input is BYTES, so that a number of rows gives the payload's size."""
    fixed_outputs: bool = field(init=False, repr=False, compare=False)
    """True if no output is BYTES."""
    _input_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _output_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check everything once and compute the sizes that the hot path needs."""
        fault = _fault_of(self)
        if fault:
            raise LocalProtocolError(f"bad signature: {fault}")
        set_ = object.__setattr__
        set_(self, "fixed_inputs", all(spec.dtype != DType.BYTES for spec in self.inputs))
        set_(self, "fixed_outputs", all(spec.dtype != DType.BYTES for spec in self.outputs))
        set_(self, "_input_sizes", tuple(spec.row_nbytes for spec in self.inputs))
        set_(self, "_output_sizes", tuple(spec.row_nbytes for spec in self.outputs))

    def input_nbytes(self, rows: int) -> int:
        """Return the payload bytes of a request of `rows` rows, padding included; BYTES inputs count 0."""
        return sum([(rows * size + 7) & ~7 for size in self._input_sizes])

    def output_nbytes(self, rows: int) -> int:
        """Return the payload bytes of a reply of `rows` rows, padding included; BYTES outputs count 0."""
        return sum([(rows * size + 7) & ~7 for size in self._output_sizes])

    def encode(self) -> bytes:
        """Return the value of TLV SIGNATURE."""
        head = _HEAD.pack(self.version, self.max_rows, len(self.inputs), len(self.outputs), 0, 0)
        return head + b"".join(_encode_tensor(spec) for spec in self.inputs + self.outputs)

    @classmethod
    def decode(cls, value: "bytes | memoryview", limits: Limits = DEFAULT_LIMITS) -> "Signature":
        """Return the signature of a TLV value.

        Raises:
            RemoteProtocolError: 3.4, the value is malformed.
        """
        try:
            return cls._decode(bytes(value), limits)
        except (StructError, ValueError, LocalProtocolError) as error:
            raise RemoteProtocolError(ErrorCode.INVALID_META, f"TLV SIGNATURE: {error}") from None

    @classmethod
    def _decode(cls, data: bytes, limits: Limits) -> "Signature":
        version, max_rows, n_inputs, n_outputs, _, _ = _HEAD.unpack_from(data)
        if max(n_inputs, n_outputs) > limits.max_tensors:
            raise ValueError(f"more than {limits.max_tensors} tensors")
        specs: list[TensorSpec] = []
        pos = _HEAD.size
        for _ in range(n_inputs + n_outputs):
            spec, pos = _decode_tensor(data, pos)
            specs.append(spec)
        if pos != len(data):
            raise ValueError(f"{len(data) - pos} bytes left over")
        return cls(tuple(specs[:n_inputs]), tuple(specs[n_inputs:]), version, max_rows)


def _encode_tensor(spec: TensorSpec) -> bytes:
    name = spec.name.encode("ascii")
    ndim = len(spec.dims)
    packed = Struct(f"<{ndim}i").pack(*spec.dims)
    value = _TENSOR.pack(spec.dtype, ndim, len(name), 0) + packed + name
    return value + bytes(-len(value) % 8)


def _decode_tensor(data: bytes, start: int) -> tuple[TensorSpec, int]:
    number, ndim, name_nbytes, _ = _TENSOR.unpack_from(data, start)
    dtype = dtype_of(number)
    if dtype is None:
        raise ValueError(f"no dtype {number}")
    pos = start + _TENSOR.size
    dims = Struct(f"<{ndim}i").unpack_from(data, pos)
    pos += 4 * ndim
    end = start + pad8(pos + name_nbytes - start)
    if end > len(data):
        raise ValueError("a tensor's name runs over the end")
    name = data[pos : pos + name_nbytes].decode("ascii")
    return TensorSpec(name, dtype, dims), end


def _fault_of(signature: Signature) -> str:
    if not 1 <= signature.version <= 0xFFFF_FFFF:
        return f"version {signature.version} is not 1 to 2^32 - 1"
    if not 1 <= signature.max_rows <= 0xFFFF:
        return f"max_rows {signature.max_rows} is not 1 to 65535"
    for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not specs:
            return f"no {side}"
        if len({spec.name for spec in specs}) != len(specs):
            return f"two {side}s of one name"
        for spec in specs:
            fault = _fault_of_spec(spec)
            if fault:
                return f"{side} {spec.name!r}: {fault}"
    return ""


def _fault_of_spec(spec: TensorSpec) -> str:
    if not NAME_PATTERN.fullmatch(spec.name):
        return "the name is not 1 to 64 of A-Z a-z 0-9 _ . - that start with a letter or digit"
    if not spec.dims or spec.dims[0] != -1:
        return f"dims {spec.dims} do not start with the batch dimension -1"
    if len(spec.dims) > DEFAULT_LIMITS.max_ndim:
        return f"more than {DEFAULT_LIMITS.max_ndim} dimensions"
    if not all(0 < dim <= _MAX_DIM for dim in spec.dims[1:]):
        return f"dims {spec.dims} after the first are not all 1 to 2^31 - 1"
    if spec.row_elements > _MAX_DIM:
        return "one row has more than 2^31 - 1 elements"
    return ""
