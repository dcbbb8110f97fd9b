"""What each frame type may carry and how it becomes an event: SPEC section 6 as tables."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ._codes import ErrorCode, code_of
from ._errors import RemoteProtocolError
from ._events import (
    Admin,
    Bind,
    Bound,
    Cancel,
    Credit,
    Done,
    Error,
    Event,
    GoAway,
    Hello,
    Infer,
    InferMany,
    InferPart,
    Partial,
    Ping,
    Pong,
    Result,
    ResultMany,
    ShmReg,
    ShmUnreg,
    Unbind,
    Welcome,
)  # fmt: skip
from ._meta import Meta
from ._registry import CLASS_MASK, MAX_RID, NAME_FOLLOWS, RETRY_NEVER, Feature, Flag, FrameType, Tag
from ._values import Features, PeerLimits, ShmRef, bad_meta


class Head(NamedTuple):
    """A header, decoded; fields as in `_header`."""

    w0: int
    body: int
    rid: int
    handle: int
    flags: int
    tmo: int
    meta8: int
    rows: int
    aux: int


Check: TypeAlias = Callable[[Head], "str | None"]
DecodeData: TypeAlias = Callable[[Head, bytes, memoryview], Event]
DecodeControl: TypeAlias = Callable[[Head, Meta, memoryview], Event]


class Rule(NamedTuple):
    """What a receiver of one role does with one frame type.

    Exactly one of `data` and `control` is set. A data frame keeps its meta undecoded and may be larger than the
    receive buffer; a control frame is buffered whole and its meta is decoded.
    """

    flags: int
    """Flags that are defined for this type."""
    data: DecodeData | None = None
    control: DecodeControl | None = None
    tags: frozenset[int] = frozenset()
    """TLVs that are defined for this type, if it is a control frame."""
    check: Check | None = None
    """Says what is wrong with the header (3.4)."""
    feature: int = 0
    """Feature without which the type is not implemented (12.1)."""
    has_payload: bool = False
    """Whether a control frame may have bytes after its meta (3.3)."""
    many: bool = False
    """Whether `rows` counts ids."""
    requests: bool = False
    """Whether the frame holds requests, which GOAWAY counts."""


def _tags(*tags: Tag) -> frozenset[int]:
    return frozenset(int(tag) for tag in tags)


BOUND_REQUEST_TAGS: Final = _tags(Tag.TENSOR, Tag.TRACEPARENT)
"""TLVs that every server understands in INFER and INFER_MANY on a bound handle."""

NAMED_REQUEST_TAGS: Final = BOUND_REQUEST_TAGS | _tags(Tag.MODEL, Tag.VERSION, Tag.TENANT)
"""TLVs that every server understands in INFER and INFER_MANY with handle 0."""

OPTIONAL_REQUEST_TAGS: Final = _tags(Tag.OUTPUTS, Tag.PARAMS, Tag.SHMREF, Tag.SEQ_ID, Tag.COMPRESS)
"""TLVs of requests that a server may leave out, and then answers with 12.3."""

RESULT_TAGS: Final = _tags(Tag.TENSOR, Tag.TIMING, Tag.PARAMS, Tag.SHMREF, Tag.COMPRESS)
"""TLVs defined for RESULT, RESULT_MANY and PARTIAL."""

_CRC: Final = int(Flag.CRC)
_END: Final = int(Flag.END)
_REQUEST_FLAGS: Final = CLASS_MASK | int(Flag.END | Flag.CRC | Flag.NOREPLY | Flag.RETRY | Flag.SAMPLED)
_REPLY_FLAGS: Final = _REQUEST_FLAGS
FEATURE_FLAGS: Final = (
    (Feature.COMPRESS, int(Flag.COMPRESSED)),
    (Feature.SHM, int(Flag.SHM)),
    (Feature.SEQ, int(Flag.SEQ)),
)
"""Flags of data frames that are defined only with a feature."""

_NO_RID: Final = "rid is 0"


# -- checks of headers ---------------------------------------------------------------------------------------------


def _need_rid(head: Head) -> str | None:
    return None if head.rid else _NO_RID


def _need_rid_and_handle(head: Head) -> str | None:
    if not head.rid:
        return _NO_RID
    return None if head.handle else "handle is 0"


def _check_infer(head: Head) -> str | None:
    if not head.rid:
        return _NO_RID
    if not head.rows:
        return "rows is 0"
    return None if head.handle or head.meta8 else "handle is 0 and no meta names a model"


def _check_infer_many(head: Head) -> str | None:
    return _check_infer(head) or _check_ids(head)


def _check_ids(head: Head) -> str | None:
    return None if head.rid + head.rows - 1 <= MAX_RID else "the ids run past 2^64 - 1"


def _check_part(head: Head) -> str | None:
    if not head.rid:
        return _NO_RID
    if head.meta8 or not head.tmo:
        return "INFER_PART has a meta or no part number"
    return None


def _check_result(head: Head) -> str | None:
    if not head.flags & _END:
        return "a result without END"
    return _check_partial(head)


def _check_partial(head: Head) -> str | None:
    if not head.rid:
        return _NO_RID
    if head.handle:
        return "a result with a status other than 0"
    return None


def _check_result_many(head: Head) -> str | None:
    if not head.rows:
        return "rows is 0"
    return _check_result(head) or _check_ids(head)


def _check_error(head: Head) -> str | None:
    if not head.flags & _END:
        return "ERROR without END"
    if not head.handle & 0xFF:
        return "ERROR with status OK"
    if not head.rows:
        return "rows is 0"
    return _check_ids(head)


# -- data frames ---------------------------------------------------------------------------------------------------


def _infer(head: Head, meta: bytes, payload: memoryview) -> Event:
    return Infer(head.rid, head.handle, head.flags, head.tmo, head.rows, meta, payload)


def _infer_many(head: Head, meta: bytes, payload: memoryview) -> Event:
    return InferMany(head.rid, head.handle, head.flags, head.tmo, head.rows, meta, payload)


def _infer_part(head: Head, _: bytes, payload: memoryview) -> Event:
    return InferPart(head.rid, head.flags, head.tmo, payload)


def queue_us(head: Head) -> int:
    """Return the queue time of a reply; one with a CRC carries none."""
    return 0 if head.flags & _CRC else head.aux


def _result(head: Head, meta: bytes, payload: memoryview) -> Event:
    return Result(head.rid, head.flags, head.tmo, queue_us(head), head.rows, meta, payload)


def _result_many(head: Head, meta: bytes, payload: memoryview) -> Event:
    return ResultMany(head.rid, head.flags, head.tmo, queue_us(head), head.rows, meta, payload)


def _partial(head: Head, meta: bytes, payload: memoryview) -> Event:
    return Partial(head.rid, head.flags, head.tmo, head.rows, meta, payload)


# -- control frames ------------------------------------------------------------------------------------------------


def _hello(head: Head, meta: Meta, _: memoryview) -> Event:
    features, limits = meta.features or Features(), meta.limits or PeerLimits()
    return Hello(head.rid, features, limits, meta.client or "", meta.tenant, meta.auth)


def _welcome(head: Head, meta: Meta, _: memoryview) -> Event:
    return Welcome(head.rid, meta.features or Features(), meta.limits or PeerLimits(), meta.server)


def _bind(head: Head, meta: Meta, _: memoryview) -> Event:
    if meta.model is None:
        raise bad_meta("BIND without TLV MODEL")
    return Bind(head.rid, head.handle, meta.model, meta.version, meta.tenant, meta.params)


def _bound(head: Head, meta: Meta, _: memoryview) -> Event:
    if meta.signature is None:
        raise bad_meta("BOUND without TLV SIGNATURE")
    return Bound(head.rid, head.handle, meta.signature)


def _unbind(head: Head, _: Meta, __: memoryview) -> Event:
    return Unbind(head.rid, head.handle)


def _done(head: Head, _: Meta, __: memoryview) -> Event:
    return Done(head.w0 >> 24, head.rid, head.handle)


def _error(head: Head, meta: Meta, _: memoryview) -> Event:
    known = code_of(head.handle)
    code = known if known is not None and known == head.handle else head.handle
    retry_after = None if head.tmo == RETRY_NEVER else head.tmo
    return Error(
        head.rid, head.rows, code, bool(head.flags & Flag.RETRYABLE), retry_after, meta.message or ""
    )


def _cancel(head: Head, _: Meta, __: memoryview) -> Event:
    return Cancel(head.rid, head.rows or 1)


def _credit(head: Head, _: Meta, __: memoryview) -> Event:
    return Credit(head.aux, head.tmo << 10)


def _ping(head: Head, _: Meta, payload: memoryview) -> Event:
    return Ping(head.rid, bytes(payload))


def _pong(head: Head, _: Meta, payload: memoryview) -> Event:
    return Pong(head.rid, bytes(payload))


def _goaway(head: Head, meta: Meta, _: memoryview) -> Event:
    return GoAway(head.rid, meta.message or "")


def _region(meta: Meta) -> ShmRef:
    if len(meta.shmrefs) != 1 or meta.shmrefs[0].tensor != NAME_FOLLOWS:
        raise bad_meta("not exactly one TLV SHMREF with tensor 0xFFFF")
    return meta.shmrefs[0]


def _shm_reg(head: Head, meta: Meta, _: memoryview) -> Event:
    return ShmReg(head.rid, _region(meta))


def _shm_unreg(head: Head, meta: Meta, _: memoryview) -> Event:
    return ShmUnreg(head.rid, _region(meta).region)


def _admin(head: Head, _: Meta, payload: memoryview) -> Event:
    return Admin(head.rid, head.handle, bytes(payload).rstrip(b"\0"))


_F: Final = FrameType
_BOTH: Final = {
    int(_F.PING): Rule(_CRC, control=_ping, has_payload=True),
    int(_F.PONG): Rule(_CRC, control=_pong, has_payload=True),
    int(_F.ADMIN): Rule(_CRC, control=_admin, has_payload=True, check=_need_rid),
}

SERVER_RULES: Final[Mapping[int, Rule]] = _BOTH | {
    int(_F.HELLO): Rule(
        _CRC, control=_hello, tags=_tags(Tag.FEATURES, Tag.LIMITS, Tag.CLIENT, Tag.TENANT, Tag.AUTH)
    ),
    int(_F.BIND): Rule(
        _CRC,
        control=_bind,
        tags=_tags(Tag.MODEL, Tag.VERSION, Tag.TENANT, Tag.PARAMS),
        check=_need_rid_and_handle,
    ),
    int(_F.UNBIND): Rule(_CRC, control=_unbind, check=_need_rid_and_handle),
    int(_F.INFER): Rule(_REQUEST_FLAGS, data=_infer, check=_check_infer, requests=True),
    int(_F.INFER_PART): Rule(_END | _CRC, data=_infer_part, check=_check_part, feature=int(Feature.PARTS)),
    int(_F.INFER_MANY): Rule(
        _REQUEST_FLAGS, data=_infer_many, check=_check_infer_many, many=True, requests=True
    ),
    int(_F.CANCEL): Rule(_CRC, control=_cancel),
    int(_F.SHM_REG): Rule(
        _CRC, control=_shm_reg, tags=_tags(Tag.SHMREF), check=_need_rid, feature=int(Feature.SHM)
    ),
    int(_F.SHM_UNREG): Rule(
        _CRC, control=_shm_unreg, tags=_tags(Tag.SHMREF), check=_need_rid, feature=int(Feature.SHM)
    ),
}
"""Frame types that a server receives."""

CLIENT_RULES: Final[Mapping[int, Rule]] = _BOTH | {
    int(_F.WELCOME): Rule(_CRC, control=_welcome, tags=_tags(Tag.FEATURES, Tag.LIMITS, Tag.SERVER)),
    int(_F.BOUND): Rule(_CRC, control=_bound, tags=_tags(Tag.SIGNATURE), check=_need_rid_and_handle),
    int(_F.UNBIND): Rule(_CRC, control=_done, check=_need_rid),
    int(_F.RESULT): Rule(_REPLY_FLAGS, data=_result, check=_check_result),
    int(_F.PARTIAL): Rule(_REPLY_FLAGS, data=_partial, check=_check_partial, feature=int(Feature.STREAM)),
    int(_F.RESULT_MANY): Rule(_REPLY_FLAGS, data=_result_many, check=_check_result_many, many=True),
    int(_F.ERROR): Rule(_REPLY_FLAGS, control=_error, tags=_tags(Tag.ERRMSG), check=_check_error, many=True),
    int(_F.CREDIT): Rule(0, control=_credit),
    int(_F.GOAWAY): Rule(_CRC, control=_goaway, tags=_tags(Tag.ERRMSG)),
    int(_F.SHM_REG): Rule(_CRC, control=_done, check=_need_rid, feature=int(Feature.SHM)),
    int(_F.SHM_UNREG): Rule(_CRC, control=_done, check=_need_rid, feature=int(Feature.SHM)),
}
"""Frame types that a client receives."""


def header_fault(head: Head, rule: Rule, features: int) -> RemoteProtocolError | None:
    """Return what is wrong with a header, apart from sizes: type, then flags, then the other fields."""
    name = FrameType(head.w0 >> 24).name
    if rule.feature & ~features:
        return RemoteProtocolError(
            ErrorCode.UNKNOWN_TYPE, f"{name} needs a feature that was not agreed", head.rid
        )
    allowed = rule.flags
    if rule.data is not None:
        for feature, flag in FEATURE_FLAGS:
            if features & feature:
                allowed |= flag
    unknown = head.flags & 0x3FFF & ~allowed
    if unknown:
        return RemoteProtocolError(
            ErrorCode.UNKNOWN_FLAG, f"flags {unknown:#06x} are not defined for {name}", head.rid
        )
    fault = rule.check(head) if rule.check is not None else None
    if fault:
        return RemoteProtocolError(ErrorCode.INVALID_META, f"{name}: {fault}", head.rid)
    if not head.flags & _END and _needs_end(head, features):
        return RemoteProtocolError(ErrorCode.UNKNOWN_TYPE, f"{name} without END is not implemented", head.rid)
    return None


def _needs_end(head: Head, features: int) -> bool:
    kind = head.w0 >> 24
    return kind == _F.INFER_MANY or (kind == _F.INFER and not features & Feature.PARTS)
