"""The meta block: TLVs `<HHI` tag, flags, length; each value padded with zeros to a multiple of 8."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final

from ._codes import ErrorCode
from ._errors import RemoteProtocolError
from ._limits import DEFAULT_LIMITS, Limits
from ._registry import IGNORABLE_TAG, Tag
from ._signature import Signature
from ._values import (
    Compress,
    Features,
    PeerLimits,
    SeqId,
    ServerId,
    ShmRef,
    TensorDecl,
    Timing,
    bad_meta,
    decode_name,
)

_TLV: Final = Struct("<HHI")
_U32: Final = Struct("<I")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_AUTH_NBYTES: Final = 4096
_MAX_TEXT_NBYTES: Final = 1024


@dataclass(slots=True)
class Meta:
    """Decoded TLVs of one meta block; None or empty where a TLV is absent."""

    model: str | None = None
    version: int = 0
    """Version of the model, 0 = the newest."""
    tensors: tuple[TensorDecl, ...] = ()
    outputs: tuple[int, ...] = ()
    """Positions of the wanted outputs, ascending; empty = all."""
    traceparent: str | None = None
    tenant: str | None = None
    shmrefs: tuple[ShmRef, ...] = ()
    params: dict[str, Any] | None = None
    sequence: SeqId | None = None
    compress: Compress | None = None
    auth: bytes | None = None
    message: str | None = None
    features: Features | None = None
    limits: PeerLimits | None = None
    signature: Signature | None = None
    timing: Timing | None = None
    client: str | None = None
    server: ServerId | None = None


def tlv(tag: int, value: "bytes | str", flags: int = 0) -> bytes:
    """Return one TLV, padded. Text is encoded as UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    return _TLV.pack(tag, flags, len(data)) + data + bytes(-len(data) % 8)


def encode_version(version: int) -> bytes:
    """Return the value of TLV VERSION."""
    return _U32.pack(version)


def encode_outputs(positions: Iterable[int]) -> bytes:
    """Return the value of TLV OUTPUTS: output positions, which must ascend."""
    wanted = tuple(positions)
    return Struct(f"<{len(wanted)}H").pack(*wanted)


def parse_meta(meta: bytes, allowed: "frozenset[int] | None" = None, limits: Limits = DEFAULT_LIMITS) -> Meta:
    """Decode a meta block.

    Args:
        meta: The whole block; its length is a multiple of 8.
        allowed: Tags defined for the frame at hand; None = all of version 1.
        limits: Bounds on the number of TLVs, tensors and dimensions.

    Raises:
        RemoteProtocolError: 12.3 for a TLV that must be understood and is not allowed here,
            3.4 for a malformed or repeated one, 3.1 / 3.2 for a TENSOR's ndim / dtype.
    """
    found = Meta()
    seen = 0
    for number, value in _walk(meta, limits):
        decoder = _DECODERS.get(number)
        if decoder is None or (allowed is not None and number not in allowed):
            if number & IGNORABLE_TAG:
                continue
            raise RemoteProtocolError(ErrorCode.UNKNOWN_TLV, f"TLV {tag_label(number)} is not defined here")
        if seen >> number & 1 and number not in _REPEATABLE:
            raise bad_meta(f"TLV {tag_label(number)} stands twice")
        seen |= 1 << number
        decoder(found, value, limits)
    return found


def _walk(meta: bytes, limits: Limits) -> "Iterable[tuple[int, bytes]]":
    pos, end, count = 0, len(meta), 0
    while pos < end:
        if end - pos < _TLV.size:
            raise bad_meta("the meta length is not a multiple of 8")
        number, flags, nbytes = _TLV.unpack_from(meta, pos)
        start = pos + _TLV.size
        if nbytes > end - start:
            raise bad_meta(f"TLV {tag_label(number)} runs over the end of the meta")
        count += 1
        if count > limits.max_tlvs:
            raise bad_meta(f"more than {limits.max_tlvs} TLVs")
        if flags and not number & IGNORABLE_TAG:
            raise RemoteProtocolError(
                ErrorCode.UNKNOWN_TLV, f"TLV {tag_label(number)}: flags {flags:#x} are not defined"
            )
        yield number, meta[start : start + nbytes]
        pos = start + (nbytes + 7 & ~7)


def tag_label(number: int) -> str:
    """Return the name of a tag, or its number."""
    return Tag(number).name if number in _TAGS else f"{number:#x}"


_TAGS: Final = frozenset(int(tag) for tag in Tag)


def _model(found: Meta, value: bytes, _: Limits) -> None:
    found.model = decode_name(value, "TLV MODEL")


def _tenant(found: Meta, value: bytes, _: Limits) -> None:
    found.tenant = decode_name(value, "TLV TENANT")


def _version(found: Meta, value: bytes, _: Limits) -> None:
    if len(value) != _U32.size:
        raise bad_meta("TLV VERSION is not 4 bytes")
    found.version = _U32.unpack(value)[0]


def _tensor(found: Meta, value: bytes, limits: Limits) -> None:
    if len(found.tensors) >= limits.max_tensors:
        raise bad_meta(f"more than {limits.max_tensors} TLVs TENSOR")
    found.tensors += (TensorDecl.decode(value, limits),)


def _outputs(found: Meta, value: bytes, limits: Limits) -> None:
    if not value or len(value) % 2 or len(value) > 2 * limits.max_tensors:
        raise bad_meta(f"TLV OUTPUTS is not 1 to {limits.max_tensors} numbers of 2 bytes")
    wanted = Struct(f"<{len(value) // 2}H").unpack(value)
    if any(a >= b for a, b in pairwise(wanted)):
        raise bad_meta("TLV OUTPUTS does not ascend")
    found.outputs = wanted


def _traceparent(found: Meta, value: bytes, _: Limits) -> None:
    if not _TRACEPARENT.fullmatch(value):
        raise bad_meta("TLV TRACEPARENT is not a W3C traceparent of 55 characters")
    found.traceparent = value.decode("ascii")


def _shmref(found: Meta, value: bytes, limits: Limits) -> None:
    if len(found.shmrefs) >= 2 * limits.max_tensors:
        raise bad_meta(f"more than {2 * limits.max_tensors} TLVs SHMREF")
    found.shmrefs += (ShmRef.decode(value),)


def _params(found: Meta, value: bytes, _: Limits) -> None:
    found.params = decode_json_object(value, "TLV PARAMS")


def _sequence(found: Meta, value: bytes, _: Limits) -> None:
    found.sequence = SeqId.decode(value)


def _compress(found: Meta, value: bytes, _: Limits) -> None:
    found.compress = Compress.decode(value)


def _auth(found: Meta, value: bytes, _: Limits) -> None:
    if not 1 <= len(value) <= _MAX_AUTH_NBYTES:
        raise bad_meta(f"TLV AUTH is not 1 to {_MAX_AUTH_NBYTES} bytes")
    found.auth = value


def _message(found: Meta, value: bytes, _: Limits) -> None:
    found.message = _text(value, "TLV ERRMSG")


def _features(found: Meta, value: bytes, _: Limits) -> None:
    found.features = Features.decode(value)


def _limits(found: Meta, value: bytes, _: Limits) -> None:
    found.limits = PeerLimits.decode(value)


def _signature(found: Meta, value: bytes, limits: Limits) -> None:
    found.signature = Signature.decode(value, limits)


def _timing(found: Meta, value: bytes, _: Limits) -> None:
    found.timing = Timing.decode(value)


def _client(found: Meta, value: bytes, _: Limits) -> None:
    found.client = _text(value, "TLV CLIENT")


def _server(found: Meta, value: bytes, _: Limits) -> None:
    found.server = ServerId.decode(value)


def _text(value: bytes, what: str) -> str:
    if len(value) > _MAX_TEXT_NBYTES:
        raise bad_meta(f"{what} is longer than {_MAX_TEXT_NBYTES} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise bad_meta(f"{what} is not UTF-8") from None


def decode_json_object(value: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in `value`; raises RemoteProtocolError (3.4) for anything else, NaN included."""
    try:
        decoded = json.loads(value.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise bad_meta(f"{what} is not JSON") from None
    if not isinstance(decoded, dict):
        raise bad_meta(f"{what} is not a JSON object")
    return decoded


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_REPEATABLE: Final = frozenset({int(Tag.TENSOR), int(Tag.SHMREF)})
_DECODERS: Final[dict[int, Callable[[Meta, bytes, Limits], None]]] = {
    int(Tag.MODEL): _model,
    int(Tag.VERSION): _version,
    int(Tag.TENSOR): _tensor,
    int(Tag.OUTPUTS): _outputs,
    int(Tag.TRACEPARENT): _traceparent,
    int(Tag.TENANT): _tenant,
    int(Tag.SHMREF): _shmref,
    int(Tag.PARAMS): _params,
    int(Tag.SEQ_ID): _sequence,
    int(Tag.COMPRESS): _compress,
    int(Tag.AUTH): _auth,
    int(Tag.ERRMSG): _message,
    int(Tag.FEATURES): _features,
    int(Tag.LIMITS): _limits,
    int(Tag.SIGNATURE): _signature,
    int(Tag.TIMING): _timing,
    int(Tag.CLIENT): _client,
    int(Tag.SERVER): _server,
}
if len(_DECODERS) != len(Tag):
    raise AssertionError("a tag has no decoder: this is a bug")
