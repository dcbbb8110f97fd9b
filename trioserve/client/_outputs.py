"""From the payload of a reply to arrays that own their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trioserve_protocol import (
    RESULT_TAGS,
    DType,
    ErrorCode,
    RemoteProtocolError,
    ResultBegin,
    Signature,
    TensorDecl,
    TensorSpec,
    Timing,
    check_bytes_tensor,
    crc_matches,
    parse_meta,
)

from ._inputs import Array, array_bytes


class Body:
    """Memory for one large payload that is still to come.

    Either the result arrays themselves, so that the payload is received in place, or one buffer that is decoded when
    it is whole (BYTES, checksums).

    Attributes:
        views: Where the next bytes go, in order: what `recvmsg_into` takes.
    """

    __slots__ = ("begin", "outputs", "raw", "views")

    def __init__(self, begin: ResultBegin, outputs: Sequence[Array] | None) -> None:
        """Plan the memory.

        Args:
            begin: The announcement; its payload size has been checked against the signature.
            outputs: C-contiguous arrays to receive into, one an output; None: receive into one buffer.
        """
        self.begin = begin
        self.outputs = outputs
        self.raw: Array | None = None
        if outputs is None:
            self.raw = np.empty(begin.payload_nbytes, np.uint8)
            self.views = [self.raw.data]
            return
        self.views = []
        for array in outputs:
            self.views.append(array_bytes(array))
            if array.nbytes & 7:
                self.views.append(memoryview(bytearray(-array.nbytes & 7)))

    def fill_from(self, data: memoryview) -> int:
        """Copy what was read together with the header; returns how many bytes of `data` were taken."""
        taken = 0
        while self.views and taken < len(data):
            part = data[taken : taken + len(self.views[0])]
            self.views[0][: len(part)] = part
            taken += len(part)
            self.advance(len(part))
        return taken

    def advance(self, nbytes: int) -> None:
        """Note that `nbytes` more bytes lie in the views."""
        while nbytes:
            first = self.views[0]
            if nbytes < len(first):
                self.views[0] = first[nbytes:]
                return
            nbytes -= len(first)
            del self.views[0]

    def whole_payload(self) -> memoryview:
        """Return the received bytes of a body that has one buffer, after checking its checksum.

        Raises:
            RemoteProtocolError: 15.1, the checksum does not match.
        """
        if self.raw is None:
            raise AssertionError("the body was received in place: this is a bug")
        payload = self.raw.data
        if not crc_matches(self.begin, payload):
            raise RemoteProtocolError(
                ErrorCode.CRC_MISMATCH, "CRC-32 of the body does not match", self.begin.rid
            )
        return payload


def allocate(signature: Signature, rows: int) -> list[Array]:
    """Return uninitialised arrays `[rows, *row_shape]` for the outputs of a model without BYTES outputs."""
    return [np.empty((rows, *spec.row_shape), spec.dtype.numpy) for spec in signature.outputs]


def zeros(signature: Signature, rows: int) -> list[Array]:
    """Return columns for many results: zeros, and for BYTES outputs `None`."""
    shapes = [(rows, *spec.row_shape) for spec in signature.outputs]
    return [
        np.full(shape, None, object) if spec.dtype is DType.BYTES else np.zeros(shape, spec.dtype.numpy)
        for spec, shape in zip(signature.outputs, shapes, strict=True)
    ]


def decode(
    signature: Signature, rows: int, payload: memoryview, decls: tuple[TensorDecl, ...] = ()
) -> list[Array]:
    """Return the outputs of a reply as arrays `[rows, *row_shape]`; BYTES outputs are object arrays of `bytes`.

    Args:
        signature: Of the model.
        rows: Batch rows of the reply.
        payload: Its payload, padding included.
        decls: Its TLVs TENSOR, if it has any.

    Raises:
        RemoteProtocolError: the payload does not fit the signature.

    Ownership:
        The arrays are copies.
    """
    outputs: list[Array] = []
    position = 0
    if decls and len(decls) != len(signature.outputs):
        raise _misfit(f"{len(decls)} tensors, the model has {len(signature.outputs)} outputs")
    for index, spec in enumerate(signature.outputs):
        decl = decls[index] if decls else None
        if spec.dtype is DType.BYTES:
            array, nbytes = _decode_bytes(spec, rows, payload[position:], decl)
        else:
            array, nbytes = _decode_fixed(spec, rows, payload[position:])
        outputs.append(array)
        position += (nbytes + 7) & ~7
    if position != len(payload):
        raise _misfit(f"{len(payload)} bytes, the signature says {position}")
    return outputs


def parse_reply_meta(meta: bytes) -> tuple[Timing | None, tuple[TensorDecl, ...]]:
    """Return what the meta of a reply says: the phases of the request, and its tensors."""
    if not meta:
        return None, ()
    found = parse_meta(meta, RESULT_TAGS)
    return found.timing, found.tensors


def _decode_fixed(spec: TensorSpec, rows: int, data: memoryview) -> tuple[Array, int]:
    nbytes = rows * spec.row_nbytes
    if nbytes > len(data):
        raise _misfit(f"output {spec.name!r} needs {nbytes} bytes, {len(data)} are left")
    dtype: Any = spec.dtype.numpy
    # `copy` through bytes objects costs a second copy; from a view of the receive buffer there is exactly one.
    flat = np.frombuffer(data, dtype, rows * spec.row_elements)
    return flat.reshape((rows, *spec.row_shape)).copy(), nbytes


def _decode_bytes(
    spec: TensorSpec, rows: int, data: memoryview, decl: TensorDecl | None
) -> tuple[Array, int]:
    fast = decl is not None and decl.fast
    if decl is not None:
        if decl.nbytes > len(data):
            raise _misfit(f"output {spec.name!r} has {decl.nbytes} bytes, {len(data)} are left")
        data = data[: decl.nbytes]
    count = rows * spec.row_elements
    offsets, lengths, nbytes = check_bytes_tensor(data, count, fast=fast, exact=decl is not None)
    array = np.empty(count, object)
    for index, (start, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
        array[index] = bytes(data[start : start + length])
    return array.reshape((rows, *spec.row_shape)), nbytes


def _misfit(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ErrorCode.INVALID_SIZE, f"a result does not fit its model's signature: {message}"
    )
