"""Large payloads: received by the transport straight into the slots they will run from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from trioserve_protocol import pad8

if TYPE_CHECKING:
    from ._lane import Lane


class Arrival:
    """A body on its way into its slots, which it holds as a batch does: a request that is answered before its
    body is complete does not free memory that is being written.

    Args:
        lane: its model.
        requests: (first slot, rows) of each request in the frame: one of an INFER, many of an INFER_MANY.
        begun_ns: when its header was read.

    Ownership: `chunk` is slab memory. Once `abandoned` is True nobody waits for the body, its slots are free, and
    the transport must discard what still comes.
    """

    __slots__ = (
        "_index",
        "_parts",
        "_whole",
        "abandoned",
        "begun_ns",
        "lane",
        "received_nbytes",
        "requests",
        "waiting",
    )

    def __init__(self, lane: Lane, requests: list[tuple[int, int]], begun_ns: int) -> None:
        self.lane = lane
        self.requests = requests
        self.begun_ns = begun_ns
        self.waiting = len(requests)
        """Requests not answered yet."""
        self.abandoned = False
        self.received_nbytes = 0
        self._index = 0
        self._parts = _destinations(lane, requests)
        self._whole = tuple(self._parts)

    @property
    def chunk(self) -> memoryview:
        """Where the next payload bytes go, at least one byte; the body must not be complete."""
        return self._parts[self._index]

    def advance(self, nbytes: int) -> bool:
        """Notes that `nbytes`, at most the length of `chunk`, have been written there.

        Returns:
            Whether the body is complete.
        """
        self.received_nbytes += nbytes
        part = self._parts[self._index]
        if nbytes < len(part):
            self._parts[self._index] = part[nbytes:]
            return False
        self._index += 1
        return self._index == len(self._parts)

    def crc32(self, start: int) -> int:
        """The CRC-32 of the complete body, begun with that of what came before it."""
        for part in self._whole:
            start = crc32(part, start)
        return start

    def answered(self) -> bool:
        """Notes that one of its requests has been answered early; True if nobody waits for the body any more."""
        self.waiting -= 1
        self.abandoned = not self.waiting
        return self.abandoned


def _destinations(lane: Lane, requests: list[tuple[int, int]]) -> list[memoryview]:
    """Per tensor the slab memory of all rows in order, adjacent rows joined, then a scratch for the padding."""
    ranges = joined(requests)
    rows = sum(count for _, count in ranges)
    parts: list[memoryview] = []
    for view, nbytes in lane.tensors:
        parts += [view[first * nbytes : (first + count) * nbytes] for first, count in ranges]
        padding = pad8(rows * nbytes) - rows * nbytes
        if padding:
            parts.append(memoryview(bytearray(padding)))
    return parts


def joined(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (first slot, rows) of requests as ranges, adjacent ones made one."""
    ranges: list[tuple[int, int]] = []
    for first, count in requests:
        if ranges and sum(ranges[-1]) == first:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
        else:
            ranges.append((first, count))
    return ranges
