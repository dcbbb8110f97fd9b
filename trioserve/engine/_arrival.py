"""Large payloads: received by the transport straight into the memory they will be read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from trioserve_protocol import InferBegin

    from ._batch import Range
    from ._lane import Lane

SCRATCH_NBYTES: Final = 65_536


class Source(Protocol):
    """What rows come with that are on their way: a body that is received, texts that are tokenized."""

    @property
    def rows(self) -> int:
        """How many of them."""
        ...


class Arrival:
    """A body on its way into its slots.

    It holds them as a batch does: a request that is answered before its body is complete does not free memory that is
    being written.

    Args:
        lane: its model.
        request: header and meta.
        requests: (first slot, rows) of each request in the frame: one of an INFER, many of an INFER_MANY.
        ranges: the same slots, as one range a block.

    Ownership: `chunk` is slab memory. Once `abandoned` is True nobody waits for the body, its slots are free, and
    the transport must discard what still comes.
    """

    __slots__ = (
        "_crc32",
        "_index",
        "abandoned",
        "chunk",
        "lane",
        "parts",
        "ranges",
        "received_nbytes",
        "request",
        "requests",
        "waiting",
    )

    def __init__(
        self, lane: Lane, request: InferBegin, requests: list[Range], ranges: Sequence[Range]
    ) -> None:
        self.lane = lane
        self.request = request
        self.requests = requests
        self.ranges = ranges
        self.waiting = len(requests)
        """Requests not answered yet."""
        self.abandoned = False
        self.received_nbytes = 0
        self._crc32 = crc32(request.meta)
        self._index = 0
        self.parts = lane.destinations(request, ranges)
        """Where the body goes, in order."""
        self.chunk = self.parts[0]
        """Where the next payload bytes go, at least one byte while the body is not complete."""

    def advance(self, nbytes: int) -> bool:
        """Notes that `nbytes`, at most the length of `chunk`, have been written there.

        Returns:
            Whether the body is complete.
        """
        self.received_nbytes += nbytes
        if self.request.crc is not None:
            self._crc32 = crc32(self.chunk[:nbytes], self._crc32)
        self.chunk = self.chunk[nbytes:]
        if self.chunk:
            return False
        self._index += 1
        if self._index == len(self.parts):
            return True
        self.chunk = self.parts[self._index]
        return False

    @property
    def rows(self) -> int:
        """Rows that come with it."""
        return sum([count for _, count in self.ranges])

    @property
    def is_intact(self) -> bool:
        """Whether the complete body has the CRC-32 that its header promised, if it promised one."""
        return self.request.crc is None or self.request.crc == self._crc32

    def answered(self) -> bool:
        """Notes that one of its requests has been answered early; True if nobody waits for the body any more."""
        self.waiting -= 1
        self.abandoned = not self.waiting
        return self.abandoned


def scratch(nbytes: int) -> Iterator[memoryview]:
    """Places for bytes that nobody wants, in one piece of memory that is written again and again."""
    memory = memoryview(bytearray(min(nbytes, SCRATCH_NBYTES)))
    while nbytes:
        part = memory[:nbytes]
        yield part
        nbytes -= len(part)


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Ranges with adjacent ones made one."""
    result: list[Range] = []
    for first, count in ranges:
        if result and sum(result[-1]) == first:
            result[-1] = (result[-1][0], result[-1][1] + count)
        else:
            result.append((first, count))
    return result
