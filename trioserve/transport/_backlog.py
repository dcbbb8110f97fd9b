"""Reply bytes that the kernel has not taken yet."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from trioserve_protocol import HEADER_NBYTES

Buffer = bytes | bytearray | memoryview

PIECE_NBYTES: Final = 262_144
"""Most bytes that an urgent frame waits for, unless a single frame is larger."""

_BODY_AT: Final = 4
_body_of: Final = struct.Struct("<I").unpack_from


class Backlog:
    """Unsent bytes of one connection, in pieces that end where a frame ends: urgent frames go between pieces.

    Ownership: what is kept is copied, so the slots it came from are free when the turn ends.
    """

    __slots__ = ("_pieces", "_sending", "_urgent", "nbytes")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._urgent: deque[memoryview] = deque()
        self._sending = self._pieces
        """The one of both whose first entry is being sent."""
        self.nbytes = 0

    @property
    def head(self) -> memoryview:
        """What is to be sent next; the backlog must not be empty."""
        return self._sending[0]

    def keep(self, data: Buffer, sent: int = 0) -> None:
        """Enters frames.

        Args:
            data: whole frames.
            sent: how many bytes of them have left already.
        """
        self._pieces.extend(memoryview(bytes(piece)) for piece in _pieces_of(memoryview(data), sent))
        self.nbytes += len(data) - sent

    def keep_urgent(self, data: bytes) -> None:
        """Enters small frames that pass all frames but the one being sent, and small ones that came before."""
        if not self.nbytes:
            raise AssertionError("an urgent frame with nothing to pass: this is a bug")
        self._urgent.append(memoryview(data))
        self.nbytes += len(data)

    def advance(self, sent: int) -> None:
        """Notes that the first `sent` bytes of `head` have left."""
        self.nbytes -= sent
        sending = self._sending
        if sent < len(sending[0]):
            sending[0] = sending[0][sent:]
            return
        sending.popleft()
        self._sending = self._urgent or self._pieces


def _pieces_of(data: memoryview, sent: int) -> Iterator[memoryview]:
    """`data[sent:]` cut where frames end, as seldom as `PIECE_NBYTES` allows."""
    start, total = sent, len(data)
    if total - start > PIECE_NBYTES:
        end = 0
        while end < total:
            after = end + HEADER_NBYTES + _body_of(data, end + _BODY_AT)[0]
            if after - start > PIECE_NBYTES and end > start:
                yield data[start:end]
                start = end
            end = after
    if start < total:
        yield data[start:]
