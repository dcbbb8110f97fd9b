"""Frames from descriptions: JSON, hex, and the short forms of the command line.

A description may say anything, also what a server must refuse: fields given by name stand in the header as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trioserve_protocol import (
    HEADER,
    HEADER_NBYTES,
    Features,
    FrameType,
    Tag,
    encode_outputs,
    encode_version,
    frame,
    frame_bytes,
    infer_flags,
    tlv,
    w0_of,
)

from ._tensors import Tensor, from_values
from ._wire import FLAGS

_FIELDS = frozenset(
    {"type", "rid", "handle", "flags", "tmo", "timeout_us", "rows", "aux", "meta", "tlvs"}
    | {"tensors", "payload_hex", "json", "body", "meta8", "version"}
)


class BadDescription(ValueError):
    """A frame cannot be made of what was described; the message says what was expected."""


def parse_hex(text: str) -> bytes:
    """Return the bytes that hex text says; blanks are free, `#` starts a comment.

    Raises:
        BadDescription: something else than hex stands there; the message says in which line.
    """
    parts: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        try:
            parts.append(bytes.fromhex(code))
        except ValueError:
            raise BadDescription(f"line {number}: expected bytes in hex, got {code.strip()[:60]!r}") from None
    return b"".join(parts)


def parse_json(text: str) -> Iterator[dict[str, Any]]:
    """Return the descriptions in a text: JSON objects one after the other, or an array of them.

    Raises:
        BadDescription: it is no JSON, or holds something else than objects.
    """
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError as error:
            raise BadDescription(
                f"expected a JSON object for each frame, got {text[:60]!r}: {error}"
            ) from None
        text = text[end:].lstrip()
        for described in value if isinstance(value, list) else [value]:
            if not isinstance(described, dict):
                raise BadDescription(f"expected a JSON object for each frame, got {json.dumps(described)}")
            yield described


def build(described: Mapping[str, Any], default_rid: int) -> bytes:
    """Return the bytes of a described frame.

    Args:
        described: `type` (name or number), and what of the other fields it needs; see `trioserve nc --help`.
        default_rid: Its id if it does not say one.

    Raises:
        BadDescription: a field is unknown or has a value that cannot be written.
    """
    unknown = set(described) - _FIELDS
    if unknown:
        raise BadDescription(f"unknown fields {sorted(unknown)}; there are {', '.join(sorted(_FIELDS))}")
    kind = _frame_type(described.get("type"))
    tensors = _tensors(described.get("tensors", {}))
    meta = _meta(described.get("meta", {}))
    meta += b"".join(tlv(int(tag), bytes.fromhex(value)) for tag, value in described.get("tlvs", []))
    request = kind in (FrameType.INFER, FrameType.INFER_MANY)
    if request and not described.get("handle"):
        meta += b"".join(tensor.declare(position) for position, tensor in enumerate(tensors))
    rows = described.get("rows", tensors[0].dims[0] if tensors else 0)
    raw = frame_bytes(
        frame(
            kind,
            rid=described.get("rid", default_rid),
            handle=described.get("handle", 0),
            flags=_flags(described.get("flags", infer_flags() if request else 0)),
            timeout_us=described.get("tmo", described.get("timeout_us", 0)),
            meta=meta,
            rows=rows,
            aux=described.get("aux", 0),
            payload=_payload(described, tensors),
        )
    )
    return _overridden(raw, described)


def infer(target: str | int, tensors: list[Tensor], rid: int, *, flags: int, timeout_us: int) -> bytes:
    """Return an INFER.

    Args:
        target: A model's name: then its tensors are described. Or a handle: then there is no meta.
        tensors: The inputs.
        rid: Its id.
        flags: Of the header.
        timeout_us: Time left, µs; 0 = the model's default.
    """
    meta = b""
    if isinstance(target, str):
        meta = tlv(Tag.MODEL, target)
        meta += b"".join(tensor.declare(position) for position, tensor in enumerate(tensors))
    return frame_bytes(
        frame(
            FrameType.INFER,
            rid=rid,
            handle=target if isinstance(target, int) else 0,
            flags=flags,
            timeout_us=timeout_us,
            meta=meta,
            rows=tensors[0].dims[0],
            payload=_joined(tensors),
        )
    )


def with_body_nbytes(raw: bytes, nbytes: int) -> bytes:
    """Return a frame whose header says another length than its body has."""
    fields = list(HEADER.unpack_from(raw))
    fields[1] = nbytes
    return HEADER.pack(*fields) + raw[HEADER_NBYTES:]


def _joined(tensors: list[Tensor]) -> bytes:
    return b"".join(tensor.data + bytes(-len(tensor.data) % 8) for tensor in tensors)


def _frame_type(value: object) -> int:
    if isinstance(value, int) and 0 <= value <= 0xFF:
        return value
    if isinstance(value, str) and value.upper() in FrameType.__members__:
        return FrameType[value.upper()]
    raise BadDescription(
        f"type {value!r}: expected a number up to 255 or one of {', '.join(FrameType.__members__)}"
    )


def _flags(value: object) -> int:
    if isinstance(value, int):
        return value
    if not isinstance(value, list):
        raise BadDescription(f"flags {value!r}: expected a number or a list of {', '.join(FLAGS)}")
    unknown = [name for name in value if name not in FLAGS]
    if unknown:
        raise BadDescription(f"unknown flags {unknown}; there are {', '.join(FLAGS)}")
    return sum({FLAGS[name] for name in value})


def _tensors(described: Any) -> list[Tensor]:  # noqa: ANN401  any JSON
    if not isinstance(described, dict):
        raise BadDescription(
            'tensors: expected an object such as {"x": [[1, 2]]} or {"x": {"dtype": "i4", "data": [1]}}'
        )
    return [
        from_values(value["data"], name=name, dtype=value.get("dtype")) if isinstance(value, dict) else
        from_values(value, name=name)
        for name, value in described.items()
    ]  # fmt: skip


def _meta(described: Any) -> bytes:  # noqa: ANN401  any JSON
    if not isinstance(described, dict):
        raise BadDescription('meta: expected an object such as {"MODEL": "echo"}')
    return b"".join(_tlv(name, value) for name, value in described.items())


def _tlv(name: str, value: Any) -> bytes:  # noqa: ANN401  any JSON
    tag = Tag.__members__.get(name.upper())
    if tag is None:
        raise BadDescription(
            f"unknown TLV {name!r}; there are {', '.join(Tag.__members__)} (others: tlvs, in hex)"
        )
    if tag is Tag.VERSION:
        return tlv(tag, encode_version(int(value)))
    if tag is Tag.OUTPUTS:
        return tlv(tag, encode_outputs(map(int, value)))
    if tag is Tag.PARAMS:
        return tlv(tag, json.dumps(value))
    if tag is Tag.FEATURES:
        return tlv(tag, Features(**value).encode())
    if isinstance(value, str):
        return tlv(tag, value)
    raise BadDescription(f"TLV {name}: expected text, got {json.dumps(value)} (other forms: tlvs, in hex)")


def _payload(described: Mapping[str, Any], tensors: list[Tensor]) -> bytes:
    if "payload_hex" in described:
        return parse_hex(described["payload_hex"])
    if "json" in described:
        return json.dumps(described["json"]).encode()
    return _joined(tensors)


def _overridden(raw: bytes, described: Mapping[str, Any]) -> bytes:
    fields = list(HEADER.unpack_from(raw))
    fields[0] = w0_of(raw[3]) & 0xFF00FFFF | described.get("version", raw[2]) << 16
    fields[1] = described.get("body", fields[1])
    fields[6] = described.get("meta8", fields[6])
    return HEADER.pack(*fields) + raw[HEADER_NBYTES:]
