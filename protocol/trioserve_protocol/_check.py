"""Checking a request against the signature of its model."""

from math import prod
from typing import Final

from ._codes import ErrorCode
from ._dtypes import DType
from ._errors import RemoteProtocolError
from ._limits import DEFAULT_LIMITS, Limits
from ._meta import Meta, parse_meta
from ._registry import NAME_FOLLOWS
from ._rules import BOUND_REQUEST_TAGS, NAMED_REQUEST_TAGS
from ._signature import Signature, TensorSpec
from ._values import TensorDecl, bad_meta

_EMPTY: Final = Meta()


def parse_request_meta(
    meta: bytes, *, bound: bool, extra_tags: frozenset[int] = frozenset(), limits: Limits = DEFAULT_LIMITS
) -> Meta:
    """Decode the meta of an INFER or INFER_MANY.

    Args:
        meta: The event's `meta`.
        bound: Whether the request came on a bound handle. If not, TLV MODEL must be there.
        extra_tags: Those of OPTIONAL_REQUEST_TAGS that this server understands.
        limits: Bounds for the meta.

    Raises:
        RemoteProtocolError: As `parse_meta`.
    """
    if not meta:
        return _EMPTY
    found = parse_meta(meta, (BOUND_REQUEST_TAGS if bound else NAMED_REQUEST_TAGS) | extra_tags, limits)
    if not bound and found.model is None:
        raise bad_meta("handle 0 without TLV MODEL")
    return found


def check_request(
    signature: Signature,
    rows: int,
    payload_nbytes: int,
    meta: "bytes | Meta" = b"",
    *,
    bound: bool = True,
    many: bool = False,
    extra_tags: frozenset[int] = frozenset(),
    limits: Limits = DEFAULT_LIMITS,
) -> RemoteProtocolError | None:
    """Return what is wrong with a request that its header and meta already show, or None.

    The contents of BYTES tensors are not looked at: see `check_bytes_tensor`.

    Args:
        signature: Of the model that the request names.
        rows: Batch rows; for an INFER_MANY the number of its requests.
        payload_nbytes: Bytes after the meta, padding included.
        meta: The event's `meta`, or what `parse_request_meta` made of it.
        bound: Whether it came on a bound handle; only for `meta` in bytes.
        many: Whether it is an INFER_MANY, whose rows are not bounded by the model's maximum.
        extra_tags: Those of OPTIONAL_REQUEST_TAGS that this server understands; only for `meta` in bytes.
        limits: Bounds for the meta.

    Returns:
        3.5 too many rows, 3.1 shape, 3.2 dtype, 3.3 size, 3.4 / 12.3 meta, 3.6 too many BYTES elements.
    """
    if rows > signature.max_rows and not many:
        return RemoteProtocolError(
            ErrorCode.TOO_MANY_ROWS, f"{rows} rows, the model takes {signature.max_rows}"
        )
    if not meta and signature.fixed_inputs:
        wanted = signature.input_nbytes(rows)
        return None if payload_nbytes == wanted else _size_fault(payload_nbytes, wanted)
    try:
        if isinstance(meta, bytes):
            meta = parse_request_meta(meta, bound=bound, extra_tags=extra_tags, limits=limits)
        _check_outputs(signature, meta)
        if meta.tensors:
            _check_declared(signature, rows, payload_nbytes, meta.tensors, limits)
        else:
            _check_undeclared(signature, rows, payload_nbytes, limits)
    except RemoteProtocolError as error:
        return error
    return None


def _check_outputs(signature: Signature, meta: Meta) -> None:
    if meta.outputs and meta.outputs[-1] >= len(signature.outputs):
        raise bad_meta(f"TLV OUTPUTS: the model has {len(signature.outputs)} outputs")


def _check_undeclared(signature: Signature, rows: int, payload_nbytes: int, limits: Limits) -> None:
    """Without TLVs TENSOR a BYTES input is in the Open Inference Protocol's form, its size still unknown."""
    least = 0
    for spec in signature.inputs:
        if spec.dtype == DType.BYTES:
            _check_elements(spec, rows, limits)
            least += 4 * rows * spec.row_elements
        else:
            least += (rows * spec.row_nbytes + 7) & ~7
    if signature.fixed_inputs and payload_nbytes != least:
        raise _size_fault(payload_nbytes, least)
    if payload_nbytes < least:
        raise RemoteProtocolError(
            ErrorCode.INVALID_SIZE, f"payload of {payload_nbytes} bytes, at least {least} wanted"
        )


def _check_declared(
    signature: Signature, rows: int, payload_nbytes: int, tensors: tuple[TensorDecl, ...], limits: Limits
) -> None:
    if len(tensors) != len(signature.inputs):
        raise bad_meta(f"{len(tensors)} TLVs TENSOR, the model has {len(signature.inputs)} inputs")
    total = 0
    for position, (decl, spec) in enumerate(zip(tensors, signature.inputs, strict=True)):
        _check_tensor(decl, spec, position, rows, limits)
        total += (decl.nbytes + 7) & ~7
    if total != payload_nbytes:
        raise _size_fault(payload_nbytes, total)


def _check_tensor(decl: TensorDecl, spec: TensorSpec, position: int, rows: int, limits: Limits) -> None:
    if (decl.name != spec.name) if decl.index == NAME_FOLLOWS else (decl.index != position):
        given = decl.name or decl.index
        raise bad_meta(f"TLV TENSOR {position} is of {given!r}, input {position} is {spec.name!r}")
    if decl.dtype != spec.dtype:
        message = f"input {spec.name!r} is {decl.dtype.label}, the model takes {spec.dtype.label}"
        raise RemoteProtocolError(ErrorCode.INVALID_DTYPE, message)
    wanted = (rows, *spec.row_shape)
    if decl.dims != wanted:
        message = f"input {spec.name!r} has shape {list(decl.dims)}, wanted is {list(wanted)}"
        raise RemoteProtocolError(ErrorCode.INVALID_SHAPE, message)
    if spec.dtype == DType.BYTES:
        _check_elements(spec, rows, limits)
        least = 4 * (prod(wanted) + int(decl.fast))
        if decl.nbytes < least:
            raise _size_fault(decl.nbytes, least)
    elif decl.nbytes != rows * spec.row_nbytes:
        raise _size_fault(decl.nbytes, rows * spec.row_nbytes)


def _check_elements(spec: TensorSpec, rows: int, limits: Limits) -> None:
    count = rows * spec.row_elements
    if count > limits.max_bytes_elements:
        message = f"input {spec.name!r} has {count} elements, at most {limits.max_bytes_elements} are taken"
        raise RemoteProtocolError(ErrorCode.INVALID_BYTES, message)


def _size_fault(given: int, wanted: int) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.INVALID_SIZE, f"{given} bytes, wanted are {wanted}")
