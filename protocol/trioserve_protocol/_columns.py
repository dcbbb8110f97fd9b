"""Runs of equal frames as numpy columns, both ways.

Frames of one length lie at a constant stride, so their header fields are strided columns. Frame i + 1 starts
where the stride says only if frames 0..i all have the first one's length; hence only a *prefix* of equal frames
is taken. Equality of a column is tested on its bytes (`tobytes() == first * n`, about 0.4 µs): a numpy
comparison and reduction costs 2 to 3 µs and runs only when that test fails.
"""

from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ._codes import ErrorCode
from ._events import InferRun, ResultRun
from ._header import HEADER_DTYPE, HEADER_NBYTES, W0_ERROR, W0_INFER, W0_RESULT
from ._registry import CLASS_MASK, RETRY_NEVER, Flag

U8: Final = np.dtype("<u1")
U16: Final = np.dtype("<u2")
U32: Final = np.dtype("<u4")
U64: Final = np.dtype("<u8")

_VARYING_FLAGS: Final = CLASS_MASK | int(Flag.RETRY) | int(Flag.SAMPLED)
# Handle and flags as one u32, without the flags that may differ within a run.
_HANDLE_FLAGS_MASK: Final = np.uint32(0xFFFF_FFFF & ~(_VARYING_FLAGS << 16))
_U64_AT: Final = Struct("<Q").unpack_from
_END: Final = int(Flag.END)

_array: Final = np.ndarray


def run_length(data: memoryview, pos: int, stride: int, meta_nbytes: int, limit: int, least: int) -> int:
    """Return how many frames from `pos` on are equal to the first in all that a run must share, at most `limit`.

    Anything below `least` means "no run"; it need not be exact. The first frame must have been checked.
    """
    # A frame of another type or length is mostly seen at once, in the last place that matters.
    first = _U64_AT(data, pos)[0]
    if _U64_AT(data, pos + stride * (least - 1))[0] != first:
        return 0
    count = _prefix(_array((limit,), U64, data, pos, (stride,)), data[pos : pos + 8])
    count = _prefix(_array((count,), U32, data, pos + 24, (stride,)), data[pos + 24 : pos + 28])
    count = _prefix_of_flags(_array((count,), U32, data, pos + 16, (stride,)), data[pos + 16 : pos + 20])
    if meta_nbytes:
        start = pos + HEADER_NBYTES
        count = _prefix(
            _array((count, meta_nbytes), U8, data, start, (stride, 1)), data[start : start + meta_nbytes]
        )
    rids: npt.NDArray[np.uint64] = _array((count,), U64, data, pos + 8, (stride,))
    if np.count_nonzero(rids) != count:  # id 0 is an error of its own, for the scalar path
        return int((rids == 0).argmax())
    return count


def _prefix(column: npt.NDArray[Any], first: memoryview) -> int:
    """Return how many entries of a column (or rows of a matrix) equal its first, whose bytes are `first`."""
    count = len(column)
    if column.tobytes() == bytes(first) * count:
        return count
    differs = column != column[0]
    return int((differs.any(axis=1) if differs.ndim == 2 else differs).argmax())


def _prefix_of_flags(column: npt.NDArray[np.uint32], first: memoryview) -> int:
    """As `_prefix` for handle and flags, but for the flags that may differ within a run."""
    count = len(column)
    if column.tobytes() == bytes(first) * count:
        return count
    differs = (column ^ column[0]) & _HANDLE_FLAGS_MASK
    return int(differs.astype(bool).argmax()) if differs.any() else count


def infer_run(
    data: memoryview, pos: int, stride: int, count: int, meta_nbytes: int, *, handle: int, rows: int
) -> InferRun:
    """Return `count` equal INFER frames from `pos` on as columns."""
    body = pos + HEADER_NBYTES + meta_nbytes
    return InferRun(
        count,
        handle,
        rows,
        bytes(data[pos + HEADER_NBYTES : body]) if meta_nbytes else b"",
        _array((count,), U64, data, pos + 8, (stride,)).copy(),
        _array((count,), U16, data, pos + 18, (stride,)).copy(),
        _array((count,), U32, data, pos + 20, (stride,)).copy(),
        _array((count, stride - HEADER_NBYTES - meta_nbytes), U8, data, body, (stride, 1)),
    )


def result_run(
    data: memoryview, pos: int, stride: int, count: int, meta_nbytes: int, *, rows: int
) -> ResultRun:
    """Return `count` equal RESULT frames from `pos` on as columns."""
    body = pos + HEADER_NBYTES + meta_nbytes
    return ResultRun(
        count,
        rows,
        bytes(data[pos + HEADER_NBYTES : body]) if meta_nbytes else b"",
        _array((count,), U64, data, pos + 8, (stride,)).copy(),
        _array((count,), U16, data, pos + 18, (stride,)).copy(),
        _array((count,), U32, data, pos + 20, (stride,)).copy(),
        _array((count,), U32, data, pos + 28, (stride,)).copy(),
        _array((count, stride - HEADER_NBYTES - meta_nbytes), U8, data, body, (stride, 1)),
    )


def request_columns(
    handle: int,
    rids: npt.NDArray[np.uint64],
    timeouts_us: "npt.NDArray[np.uint32] | int",
    flags: "npt.NDArray[np.uint16] | int",
    payload_rows: npt.NDArray[np.uint8],
    *,
    rows: int = 1,
) -> npt.NDArray[np.uint8]:
    """Return k INFER frames as one block, to be sent in one go.

    Args:
        handle: A bound handle.
        rids: u64[k].
        timeouts_us: u32[k] or one number for all, µs.
        flags: u16[k] or one number for all; `infer_flags`, END set.
        payload_rows: u8[k, n], each row the payload of one request; padding to a multiple of 8 is added.
        rows: Batch rows of each request.

    Returns:
        u8[k, 32 + pad8(n)], contiguous, owned by the caller.
    """
    out, heads = _block(W0_INFER, rids, payload_rows, rows)
    heads["handle"] = handle
    heads["flags"] = flags
    heads["tmo"] = timeouts_us
    return out


def result_columns(
    rids: npt.NDArray[np.uint64],
    payload_rows: npt.NDArray[np.uint8],
    *,
    rows: int = 1,
    flags: "npt.NDArray[np.uint16] | int" = _END,
    server_us: "npt.NDArray[np.uint32] | int" = 0,
    queue_us: "npt.NDArray[np.uint32] | int" = 0,
) -> npt.NDArray[np.uint8]:
    """Return k RESULT frames as one block, to be sent in one go. Arguments as in `request_columns`."""
    out, heads = _block(W0_RESULT, rids, payload_rows, rows)
    heads["flags"] = flags
    heads["tmo"] = server_us
    heads["aux"] = queue_us
    return out


def error_columns(
    rids: npt.NDArray[np.uint64],
    code: ErrorCode,
    retry_after_us: "npt.NDArray[np.uint32] | int | None" = None,
) -> npt.NDArray[np.uint8]:
    """Return k ERROR frames without message, 32 bytes each, as one block u8[k, 32]."""
    out = np.zeros((len(rids), HEADER_NBYTES), U8)
    heads = _heads(out)
    if retry_after_us is None:
        retry_after_us = 0 if code.retryable else RETRY_NEVER
    heads["w0"] = W0_ERROR
    heads["rid"] = rids
    heads["handle"] = int(code)
    heads["flags"] = int(Flag.END | Flag.RETRYABLE) if code.retryable else _END
    heads["tmo"] = retry_after_us
    heads["rows"] = 1
    return out


def _block(
    w0: int, rids: npt.NDArray[np.uint64], payload_rows: npt.NDArray[np.uint8], rows: int
) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]":
    count, nbytes = payload_rows.shape
    body = (nbytes + 7) & ~7
    out = np.empty((count, HEADER_NBYTES + body), U8)
    out[:, HEADER_NBYTES : HEADER_NBYTES + nbytes] = payload_rows
    if body != nbytes:
        out[:, HEADER_NBYTES + nbytes :] = 0
    heads = _heads(out)
    out[:, :HEADER_NBYTES] = 0
    heads["w0"] = w0
    heads["body"] = body
    heads["rid"] = rids
    heads["rows"] = rows
    return out, heads


def _heads(block: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return the headers of a block of frames as a strided structured array."""
    return _array((block.shape[0],), HEADER_DTYPE, block, 0, (block.shape[1],))
