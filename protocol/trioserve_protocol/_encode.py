"""Building frames: control frames and single requests and replies. For runs see `_columns`."""

from collections.abc import Sequence
from struct import error as StructError  # noqa: N812 - the exception is a class, whatever its spelling
from typing import Any, Final, TypeAlias

from ._codes import ErrorCode
from ._errors import LocalProtocolError
from ._header import HEADER, W0_ERROR, w0_of
from ._meta import tlv
from ._registry import MAX_TIMEOUT_US, RETRY_NEVER, Flag, FrameType, Tag
from ._signature import Signature

Buffer: TypeAlias = "bytes | bytearray | memoryview[Any]"

_PAD: Final = tuple(bytes(n) for n in range(8))
_END: Final = int(Flag.END)
_END_RETRYABLE: Final = int(Flag.END | Flag.RETRYABLE)
_MAX_MESSAGE_NBYTES: Final = 1024


def frame(
    frame_type: int,
    *,
    rid: int = 0,
    handle: int = 0,
    flags: int = 0,
    timeout_us: int = 0,
    meta: bytes = b"",
    rows: int = 0,
    aux: int = 0,
    payload: Buffer = b"",
) -> list[Buffer]:
    """Return a frame as buffers for `sendmsg`.

    Args:
        frame_type: A `FrameType`, or any number 0..255.
        rid: Request id.
        handle: Handle, or the status of a reply.
        flags: Class and `Flag` bits.
        timeout_us: The field `tmo`, whatever the type puts there.
        meta: Joined TLVs (`tlv`).
        rows: The field `rows`.
        aux: The field `aux`.
        payload: Contiguous bytes; padding is added.

    Returns:
        Header and meta joined; then `payload` itself (not a copy) and its padding, if there are any.

    Raises:
        LocalProtocolError: `meta` is not a multiple of 8, or a number does not fit its field.
    """
    meta_nbytes = len(meta)
    nbytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    pad = -nbytes & 7
    if meta_nbytes & 7:
        raise LocalProtocolError("meta is not a multiple of 8 bytes")
    try:
        head = HEADER.pack(
            w0_of(frame_type),
            meta_nbytes + nbytes + pad,
            rid,
            handle,
            flags,
            timeout_us,
            meta_nbytes >> 3,
            rows,
            aux,
        )
    except StructError as error:
        raise LocalProtocolError(f"a header field is out of range: {error}") from None
    parts: list[Buffer] = [head + meta]
    if nbytes:
        parts.append(payload)
        if pad:
            parts.append(_PAD[pad])
    return parts


def frame_bytes(parts: Sequence[Buffer]) -> bytes:
    """Join what `frame` returned."""
    return b"".join(parts)


def infer_flags(
    request_class: int = 0, *, retry: bool = False, sampled: bool = False, noreply: bool = False
) -> int:
    """Return the flags of a whole INFER or INFER_MANY."""
    flags = request_class | _END
    if retry:
        flags |= Flag.RETRY
    if sampled:
        flags |= Flag.SAMPLED
    if noreply:
        flags |= Flag.NOREPLY
    return int(flags)


def timeout_us(left_ns: float) -> int | None:
    """Return the field `tmo` for a deadline that is `left_ns` away (`inf` for none).

    Returns:
        None if the deadline has passed: then the request must not be sent at all. Less than 1 µs counts as 1,
        more than 2^32 - 2 saturates, infinite is 0.
    """
    if left_ns <= 0:
        return None
    if left_ns == float("inf"):
        return 0
    return min(max(int(left_ns // 1000), 1), MAX_TIMEOUT_US)


def error_frame(
    rid: int, code: ErrorCode, message: str = "", *, count: int = 1, retry_after_us: int | None = None
) -> bytes:
    """Return one ERROR frame.

    Args:
        rid: First id that it ends; 0 = the connection.
        code: What went wrong.
        message: Text that is safe to send; cut at 1,024 bytes.
        count: Ids that it ends; more than 1 only for ids of one INFER_MANY.
        retry_after_us: Earliest retry; None = at once if the code is retryable, else never.
    """
    meta = (
        tlv(Tag.ERRMSG, message.encode()[:_MAX_MESSAGE_NBYTES].decode("utf-8", "ignore")) if message else b""
    )
    retryable = code.retryable
    if retry_after_us is None:
        retry_after_us = 0 if retryable else RETRY_NEVER
    flags = _END_RETRYABLE if retryable else _END
    return HEADER.pack(W0_ERROR, len(meta), rid, code, flags, retry_after_us, len(meta) >> 3, count, 0) + meta


def bind_frame(rid: int, handle: int, model: str, meta: bytes = b"") -> bytes:
    """Return a BIND; `meta` = further TLVs (VERSION, TENANT, PARAMS)."""
    return frame_bytes(frame(FrameType.BIND, rid=rid, handle=handle, meta=tlv(Tag.MODEL, model) + meta))


def bound_frame(rid: int, handle: int, signature: Signature) -> bytes:
    """Return a BOUND."""
    return frame_bytes(
        frame(FrameType.BOUND, rid=rid, handle=handle, meta=tlv(Tag.SIGNATURE, signature.encode()))
    )


def cancel_frame(rid: int, count: int = 1) -> bytes:
    """Return a CANCEL of `count` ids from `rid`; rid 0 = all of the connection."""
    return frame_bytes(frame(FrameType.CANCEL, rid=rid, rows=count))


def credit_frame(requests: int, nbytes: int) -> bytes:
    """Return a CREDIT: the window in requests and bytes (a whole number of KiB)."""
    return frame_bytes(frame(FrameType.CREDIT, aux=requests, timeout_us=nbytes >> 10))


def ping_frame(rid: int = 0, payload: Buffer = b"") -> bytes:
    """Return a PING."""
    return frame_bytes(frame(FrameType.PING, rid=rid, payload=payload))


def pong_frame(rid: int = 0, payload: Buffer = b"") -> bytes:
    """Return a PONG; id and payload are those of the PING."""
    return frame_bytes(frame(FrameType.PONG, rid=rid, payload=payload))


def goaway_frame(taken: int, message: str = "") -> bytes:
    """Return a GOAWAY: `taken` requests were taken off this connection, none will be any more."""
    return frame_bytes(frame(FrameType.GOAWAY, rid=taken, meta=tlv(Tag.ERRMSG, message) if message else b""))


def admin_frame(rid: int, json_text: bytes, *, status: int = 0) -> bytes:
    """Return an ADMIN: a request, or an answer with its status."""
    return frame_bytes(frame(FrameType.ADMIN, rid=rid, handle=status, payload=json_text))


def done_frame(frame_type: FrameType, rid: int, *, status: int = 0) -> bytes:
    """Return the answer to UNBIND, SHM_REG or SHM_UNREG."""
    return frame_bytes(frame(frame_type, rid=rid, handle=status))
