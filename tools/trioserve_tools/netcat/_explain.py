"""What a frame says, for people: an annotated hex dump; and for programs: JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from trioserve_protocol import (
    HEADER_NBYTES,
    RETRY_NEVER,
    DType,
    ErrorCode,
    FrameType,
    Meta,
    RemoteProtocolError,
    Signature,
    TensorSpec,
    check_bytes_tensor,
    code_of,
    parse_meta,
    tag_label,
)

from ._tensors import to_values
from ._wire import REQUESTS, Frame

_RESULTS = frozenset({FrameType.RESULT, FrameType.RESULT_MANY, FrameType.PARTIAL})
_BYTES_PER_LINE = 16
_MAX_VALUES = 8
_COLUMN = 3 * _BYTES_PER_LINE + 1


class Explainer:
    """Knows which model each id is for, from the BIND, BOUND and INFER frames it has seen."""

    def __init__(self) -> None:
        self._models: dict[int, Signature] = {}
        self._handles: dict[int, int] = {}

    def sent(self, frame: Frame) -> None:
        """Note a frame that was sent."""
        if frame.frame_type in REQUESTS and frame.handle:
            self._handles.update(dict.fromkeys(frame.ids, frame.handle))

    def received(self, frame: Frame) -> None:
        """Note a frame that came."""
        meta = _meta_of(frame)
        if frame.frame_type == FrameType.BOUND and isinstance(meta, Meta) and meta.signature is not None:
            self._models[frame.handle] = meta.signature

    def outputs(self, frame: Frame) -> dict[str, list[Any]]:
        """Return the tensors of a result as lists, if its model is known."""
        signature = self._models.get(self._handles.get(frame.rid, 0))
        if signature is None or frame.frame_type not in _RESULTS:
            return {}
        outputs: dict[str, list[Any]] = {}
        data = memoryview(frame.payload)
        try:
            for spec in signature.outputs:
                outputs[spec.name], nbytes = _decode(spec, frame.rows, data)
                data = data[(nbytes + 7) & ~7 :]
        except (ValueError, RemoteProtocolError):
            return {}
        return outputs

    # -- for programs ----------------------------------------------------------------------------------------------

    def as_json(self, frame: Frame) -> dict[str, Any]:
        """Return a received frame as JSON can say it."""
        described: dict[str, Any] = {"type": frame.name, "rid": frame.rid, "flags": frame.flag_names}
        if frame.frame_type == FrameType.BOUND:
            described["handle"] = frame.handle
        else:
            described["status"] = frame.handle
        described |= {name: value for name, _, value in _meanings(frame) if name and value is not None}
        described["rows"] = frame.rows
        meta = _meta_of(frame)
        described["meta"] = _meta_as_json(meta) if isinstance(meta, Meta) else {"malformed": meta}
        outputs = self.outputs(frame)
        if outputs:
            described["outputs"] = outputs
        elif frame.frame_type == FrameType.ADMIN:
            described["json"] = json.loads(frame.payload.rstrip(b"\0") or b"null")
        elif frame.payload:
            described["payload_hex"] = frame.payload.hex()
        return described

    # -- for people ------------------------------------------------------------------------------------------------

    def as_dump(self, frame: Frame, mark: str) -> str:
        """Return a frame as a hex dump with a note on each field; `mark` says in which direction it went."""
        lines = [f"{mark} {frame.name} rid {frame.rid}, {len(frame.raw)} bytes"]
        position = 0
        for size, note in _header_notes(frame):
            lines.append(_line(position, frame.raw[position : position + size], note))
            position += size
        lines += _meta_lines(frame)
        lines += self._payload_lines(frame)
        return "\n".join(lines)

    def _payload_lines(self, frame: Frame) -> Iterator[str]:
        start = HEADER_NBYTES + 8 * frame.meta8
        notes = [f"{name}: {_shortened(values)}" for name, values in self.outputs(frame).items()]
        if frame.frame_type == FrameType.ADMIN:
            notes = [frame.payload.rstrip(b"\0").decode("utf-8", "backslashreplace")]
        payload = frame.payload
        for offset in range(0, len(payload), _BYTES_PER_LINE):
            chunk = payload[offset : offset + _BYTES_PER_LINE]
            yield _line(start + offset, chunk, "payload" if not offset else "")
        yield from (f"        {note}" for note in notes)


def not_a_frame(data: bytes, mark: str) -> str:
    """Return a dump of bytes that are no frame, such as the hint that strangers get."""
    lines = [f"{mark} {len(data)} bytes that are not a whole frame"]
    for offset in range(0, len(data), _BYTES_PER_LINE):
        chunk = data[offset : offset + _BYTES_PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        lines.append(_line(offset, chunk, text))
    return "\n".join(lines)


def status_text(status: int) -> str:
    """Return a status as the specification writes it, with its name."""
    known = code_of(status)
    name = known.name if known is not None and known == status else "unknown"
    return f"{status & 0xFF}.{status >> 8} {name}"


def _header_notes(frame: Frame) -> Iterator[tuple[int, str]]:
    yield 4, f"w0     'TS', version {frame.raw[2]}, type {frame.frame_type:#04x} {frame.name}"
    yield 4, f"body   {frame.body} bytes"
    yield 8, f"rid    {frame.rid}"
    for size, (_, note, _) in zip((2, 2, 4, 2, 2, 4), _meanings(frame), strict=True):
        yield size, note


def _meanings(frame: Frame) -> list[tuple[str, str, Any]]:
    """Return name, note and value of the header's fields after the id, as the frame's type uses them."""
    kind = frame.frame_type
    reply = kind in _RESULTS or kind == FrameType.ERROR
    handle = f"status {status_text(frame.handle)}" if _has_status(kind) else f"handle {frame.handle}"
    never = kind == FrameType.ERROR and frame.tmo == RETRY_NEVER
    special: dict[int, tuple[str, str]] = {
        FrameType.ERROR: (
            "retry_after_us",
            "never to be retried" if never else f"to be retried after {frame.tmo} us",
        ),
        FrameType.PARTIAL: ("part", f"part {frame.tmo}"),
        FrameType.CREDIT: ("window_kib", f"window of {frame.tmo} KiB"),
    }
    usual = ("server_us", f"{frame.tmo} us in the server") if reply else ("", str(frame.tmo))
    if kind in REQUESTS:
        usual = ("", f"{frame.tmo} us left" if frame.tmo else "0, the model's own deadline")
    tmo = special.get(kind, usual)
    aux = ("queue_us", f"{frame.aux} us in the queue") if kind in _RESULTS else ("", str(frame.aux))
    if kind == FrameType.CREDIT:
        aux = ("window_requests", f"window of {frame.aux} requests")
    return [
        ("", handle, None),
        ("", f"flags  {' '.join(frame.flag_names) or 'none'}", None),
        (tmo[0], f"tmo    {tmo[1]}", None if never else frame.tmo),
        ("", f"meta8  {8 * frame.meta8} bytes of meta", None),
        ("", f"rows   {frame.rows}", None),
        (aux[0], f"aux    {aux[1]}", frame.aux),
    ]


def _has_status(kind: int) -> bool:
    return kind in _RESULTS or kind in (FrameType.ERROR, FrameType.ADMIN, FrameType.UNBIND)


def _meta_of(frame: Frame) -> Meta | str:
    try:
        return parse_meta(frame.meta)
    except RemoteProtocolError as error:
        return error.message


def _meta_lines(frame: Frame) -> Iterator[str]:
    """Yield the TLVs one by one, without trusting their lengths."""
    meta, position = frame.meta, 0
    while position + 8 <= len(meta):
        tag = int.from_bytes(meta[position : position + 2], "little")
        nbytes = int.from_bytes(meta[position + 4 : position + 8], "little")
        end = min(position + 8 + ((nbytes + 7) & ~7), len(meta))
        yield _line(
            HEADER_NBYTES + position, meta[position : position + 8], f"TLV {tag_label(tag)}, {nbytes} bytes"
        )
        for offset in range(position + 8, end, _BYTES_PER_LINE):
            chunk = meta[offset : min(offset + _BYTES_PER_LINE, end)]
            yield _line(HEADER_NBYTES + offset, chunk, _printable(chunk))
        position = end
    understood = _meta_of(frame)
    if isinstance(understood, str):
        yield f"        malformed: {understood}"
    else:
        yield from (
            f"        {name}: {json.dumps(value)}" for name, value in _meta_as_json(understood).items()
        )


def _meta_as_json(meta: Meta) -> dict[str, Any]:
    found = {name: getattr(meta, name) for name in Meta.__slots__}
    return {name: _plain(value) for name, value in found.items() if value not in (None, (), 0)}


def _plain(value: Any) -> Any:  # noqa: ANN401  whatever a TLV decodes to
    if isinstance(value, Signature):
        sides = {"inputs": value.inputs, "outputs": value.outputs}
        return {"version": value.version, "max_rows": value.max_rows} | {
            side: [{"name": spec.name, "dtype": spec.dtype.name, "dims": list(spec.dims)} for spec in specs]
            for side, specs in sides.items()
        }
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, DType | ErrorCode):
        return value.name
    return value.hex() if isinstance(value, bytes) else value


def _decode(spec: TensorSpec, rows: int, data: memoryview) -> tuple[list[Any], int]:
    count = rows * spec.row_elements
    if spec.dtype is DType.BYTES:
        starts, sizes, nbytes = check_bytes_tensor(data, count, fast=False)
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        array = np.empty(count, object)
        array[:] = [bytes(data[start : start + size]) for start, size in spans]
    else:
        nbytes = rows * spec.row_nbytes
        array = np.frombuffer(data, spec.dtype.numpy, count)
    return to_values(spec.dtype, array.reshape((rows, *spec.row_shape))), nbytes


def _shortened(values: list[Any]) -> str:
    text = json.dumps(values)
    flat = np.asarray(values, object).ravel() if len(text) > 100 else None
    if flat is None or len(flat) <= _MAX_VALUES:
        return text
    return f"{', '.join(map(json.dumps, flat[:_MAX_VALUES]))}, ... {len(flat)} values"


def _printable(chunk: bytes) -> str:
    text = chunk.rstrip(b"\0")
    return f'"{text.decode()}"' if text and all(32 <= byte < 127 for byte in text) else ""


def _line(offset: int, chunk: bytes, note: str) -> str:
    return f"  {offset:04x}  {chunk.hex(' '):<{_COLUMN}}{note}".rstrip()
