"""The fast path: whole, plain INFER (server) and RESULT (client) frames. Everything else is left to `_connection`.

The two loops are one loop written twice: what they share would cost a call or a test for each frame.
"""

from typing import Final, NamedTuple

from ._columns import infer_run, result_run, run_length
from ._events import Event, Infer, Result
from ._header import HEADER, HEADER_NBYTES, W0_INFER, W0_RESULT
from ._registry import CLASS_MASK, IGNORABLE_FLAGS, Flag

_END: Final = int(Flag.END)
# A frame is plain if END alone is set of all flags but these.
_PLAIN: Final = CLASS_MASK | int(Flag.NOREPLY | Flag.RETRY | Flag.SAMPLED) | IGNORABLE_FLAGS
_NOT_PLAIN: Final = 0xFFFF & ~_PLAIN

_unpack: Final = HEADER.unpack_from
_make: Final = tuple.__new__


class Bounds(NamedTuple):
    """Limits of the fast path."""

    max_body_nbytes: int
    max_meta8: int
    vector_from: int


def take_infers(
    data: memoryview, pos: int, left: int, events: list[Event], bounds: Bounds
) -> tuple[int, int]:
    """Append events for the plain, whole INFER frames from `pos` on, at most `left`.

    Returns:
        Where the first other or incomplete frame starts, and how many frames are left.
    """
    max_body, max_meta8, vector_from = bounds
    end = len(data)
    probe_at, patience = 0, vector_from
    while left and (start := pos + HEADER_NBYTES) <= end:
        w0, body, rid, handle, flags, tmo, meta8, rows, _ = _unpack(data, pos)
        stop = start + body
        payload_at = start + (meta8 << 3)
        if (
            w0 != W0_INFER
            or not payload_at <= stop <= end
            or flags & _NOT_PLAIN != _END
            or not rid
            or not rows
            or not (handle or meta8)
            or body & 7
            or body > max_body
            or meta8 > max_meta8
        ):
            break
        stride = stop - pos
        if body and pos >= probe_at and left >= vector_from and pos + stride * vector_from <= end:
            count = run_length(data, pos, stride, meta8 << 3, min((end - pos) // stride, left), vector_from)
            if count >= vector_from:
                events.append(infer_run(data, pos, stride, count, meta8 << 3, handle=handle, rows=rows))
                pos += count * stride
                left -= count
                continue
            # Ever more seldom, or a stream of mixed frames would pay for a failed probe at each of them.
            probe_at, patience = pos + stride * patience, 2 * patience
        meta = bytes(data[start:payload_at]) if meta8 else b""
        events.append(_make(Infer, (rid, handle, flags, tmo, rows, meta, data[payload_at:stop])))
        pos = stop
        left -= 1
    return pos, left


def take_results(
    data: memoryview, pos: int, left: int, events: list[Event], bounds: Bounds
) -> tuple[int, int]:
    """Append events for the plain, whole RESULT frames from `pos` on; as `take_infers`."""
    max_body, max_meta8, vector_from = bounds
    end = len(data)
    probe_at, patience = 0, vector_from
    while left and (start := pos + HEADER_NBYTES) <= end:
        w0, body, rid, status, flags, tmo, meta8, rows, aux = _unpack(data, pos)
        stop = start + body
        payload_at = start + (meta8 << 3)
        if (
            w0 != W0_RESULT
            or not payload_at <= stop <= end
            or flags & _NOT_PLAIN != _END
            or not rid
            or status
            or body & 7
            or body > max_body
            or meta8 > max_meta8
        ):
            break
        stride = stop - pos
        if body and pos >= probe_at and left >= vector_from and pos + stride * vector_from <= end:
            count = run_length(data, pos, stride, meta8 << 3, min((end - pos) // stride, left), vector_from)
            if count >= vector_from:
                events.append(result_run(data, pos, stride, count, meta8 << 3, rows=rows))
                pos += count * stride
                left -= count
                continue
            probe_at, patience = pos + stride * patience, 2 * patience
        meta = bytes(data[start:payload_at]) if meta8 else b""
        events.append(_make(Result, (rid, flags, tmo, aux, rows, meta, data[payload_at:stop])))
        pos = stop
        left -= 1
    return pos, left
