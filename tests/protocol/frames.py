"""Driving a connection in tests: any chunking in, comparable events out."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from trioserve_protocol import (
    Connection,
    ErrorCode,
    FatalError,
    Flag,
    FrameError,
    FrameType,
    Infer,
    InferBegin,
    InferMany,
    InferPart,
    InferRun,
    Partial,
    Result,
    ResultBegin,
    ResultMany,
    ResultRun,
    Role,
    crc_matches,
    frame,
    frame_bytes,
)

END = int(Flag.END)


def build(kind: int, **fields: Any) -> bytes:
    """Return one frame of any type; fields as in `frame`."""
    return frame_bytes(frame(kind, **fields))


def infer(rid: int = 1, payload: bytes = bytes(8), **fields: Any) -> bytes:
    """Return one INFER on handle 1 with one row."""
    return build(
        FrameType.INFER, rid=rid, payload=payload, **({"handle": 1, "flags": END, "rows": 1} | fields)
    )


def plain(event: Any) -> Iterator[Any]:
    """Yield the single-frame events that `event` stands for, with payloads copied."""
    if isinstance(event, InferRun):
        for index in range(event.count):
            yield Infer(
                int(event.rids[index]),
                event.handle,
                int(event.flags[index]),
                int(event.timeouts_us[index]),
                event.rows,
                event.meta,
                event.payload[index].tobytes(),  # bytes compare, views do not last
            )
    elif isinstance(event, ResultRun):
        for index in range(event.count):
            yield Result(
                int(event.rids[index]),
                int(event.flags[index]),
                int(event.server_us[index]),
                int(event.queue_us[index]),
                event.rows,
                event.meta,
                event.payload[index].tobytes(),
            )
    elif isinstance(getattr(event, "payload", None), memoryview):
        yield event._replace(payload=bytes(event.payload))
    else:
        yield event


def whole(begin: Any, payload: bytes) -> Any:
    """Return the event that the frame of a Begin event would have given, had it come whole."""
    if not crc_matches(begin, memoryview(payload)):
        count = begin.rows if begin.frame_type == FrameType.INFER_MANY else 1
        return FrameError(
            begin.rid, ErrorCode.CRC_MISMATCH, "CRC-32 of the body does not match", count, count
        )
    if isinstance(begin, InferBegin):
        if begin.frame_type == 0x11:
            return InferPart(begin.rid, begin.flags, begin.timeout_us, payload)  # type: ignore[arg-type]
        made = Infer if begin.frame_type == 0x10 else InferMany
        return made(begin.rid, begin.handle, begin.flags, begin.timeout_us, begin.rows, begin.meta, payload)  # type: ignore[arg-type]
    if begin.frame_type == 0x21:
        return Partial(begin.rid, begin.flags, begin.server_us, begin.rows, begin.meta, payload)  # type: ignore[arg-type]
    ended = Result if begin.frame_type == 0x20 else ResultMany
    return ended(begin.rid, begin.flags, begin.server_us, begin.queue_us, begin.rows, begin.meta, payload)  # type: ignore[arg-type]


class Driver:
    """Does what a transport does: keeps what was not consumed, moves large bodies itself."""

    def __init__(self, connection: Connection, *, max_frames: int = 256) -> None:
        self.connection = connection
        self.pending = b""
        self.events: list[Any] = []
        self._max_frames = max_frames
        self._begin: Any = None
        self._body = bytearray()

    @property
    def dead(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], FatalError)

    def feed(self, chunk: bytes) -> None:
        self.pending += chunk
        while not self.dead:
            if self._begin is not None:
                taken = self.pending[: self.connection.body_remaining]
                self.pending = self.pending[len(taken) :]
                self._body += taken
                if not self.connection.body_received(len(taken)):
                    return
                self.events.append(whole(self._begin, bytes(self._body)))
                self._begin = None
                self._body.clear()
            found, used = self.connection.receive(memoryview(self.pending), max_frames=self._max_frames)
            for event in found:
                if isinstance(event, InferBegin | ResultBegin):
                    self._begin = event
                    self.connection.accept_body()
                else:
                    self.events.extend(plain(event))
            self.pending = self.pending[used:]
            if not used and self._begin is None:
                return


def events_of(
    chunks: Iterable[bytes],
    role: Role = Role.SERVER,
    *,
    connection: Connection | None = None,
    max_frames: int = 256,
    **options: Any,
) -> list[Any]:
    """Return the plain events of a stream that arrives in `chunks`."""
    driver = Driver(connection or Connection(role, **options), max_frames=max_frames)
    for chunk in chunks:
        driver.feed(chunk)
    return driver.events


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Return `data` cut at the given offsets."""
    edges = [0, *sorted({min(place, len(data)) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]
