"""Frames as they are on the wire, right or wrong: a tool for faults must be able to hold them."""

from __future__ import annotations

from typing import NamedTuple

from trioserve_protocol import HEADER, HEADER_NBYTES, MAGIC, Flag, FrameType

FLAGS = {flag.name: int(flag) for flag in Flag if flag.name}
REQUESTS = frozenset({FrameType.INFER, FrameType.INFER_MANY})
ANSWERED = frozenset({FrameType.HELLO, FrameType.BIND, FrameType.UNBIND, FrameType.PING, FrameType.ADMIN})


class Frame(NamedTuple):
    """One frame: the header's fields, and all bytes of it."""

    frame_type: int
    body: int
    rid: int
    handle: int
    flags: int
    tmo: int
    meta8: int
    rows: int
    aux: int
    raw: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Frame:
        """Return the frame whose bytes these are; at least the header must be there."""
        w0, body, rid, handle, flags, tmo, meta8, rows, aux = HEADER.unpack_from(raw)
        return cls(w0 >> 24, body, rid, handle, flags, tmo, meta8, rows, aux, raw)

    @property
    def name(self) -> str:
        """Name of its type."""
        known = {kind.value: kind.name for kind in FrameType}
        return known.get(self.frame_type, f"type {self.frame_type:#04x}")

    @property
    def meta(self) -> bytes:
        """The meta block."""
        return self.raw[HEADER_NBYTES : HEADER_NBYTES + 8 * self.meta8]

    @property
    def payload(self) -> bytes:
        """What follows the meta, padding included."""
        return self.raw[HEADER_NBYTES + 8 * self.meta8 : HEADER_NBYTES + self.body]

    @property
    def flag_names(self) -> list[str]:
        """Names of its flags, the class first if it is not the default; the rest as a number."""
        names = [f"CLASS{self.flags & 3}"] if self.flags & 3 else []
        names += [name for name, bit in FLAGS.items() if self.flags & bit]
        rest = self.flags & ~3 & ~sum(set(FLAGS.values()))
        return [*names, hex(rest)] if rest else names

    @property
    def ids(self) -> range:
        """Ids that it asks about or answers."""
        many = self.frame_type in (FrameType.INFER_MANY, FrameType.RESULT_MANY, FrameType.ERROR)
        return range(self.rid, self.rid + (max(self.rows, 1) if many else 1))


class Splitter:
    """Cuts a stream of bytes into frames.

    Attributes:
        rest: Bytes that are not a whole frame yet.
        broken: Whether `rest` is not the start of a frame at all.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.broken = False

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes; returns the frames that are whole now."""
        self.rest += data
        frames: list[Frame] = []
        while not self.broken:
            prefix = self.rest[: len(MAGIC)]
            self.broken = prefix != MAGIC[: len(prefix)]
            if self.broken or len(self.rest) < HEADER_NBYTES:
                break
            end = HEADER_NBYTES + HEADER.unpack_from(self.rest)[1]
            if len(self.rest) < end:
                break
            frames.append(Frame.parse(self.rest[:end]))
            self.rest = self.rest[end:]
        return frames
