"""Room for bytes of any length that live briefly: texts between their arrival and their tokens."""

from __future__ import annotations

from typing import Final

from trioserve.memory._slots import FULL


class BumpRegion:
    """Hands out byte ranges of a region, block by block; a block is free again when its last range is.

    Texts are freed in about the order they came, so there is nothing to search and nothing to compact: an
    allocation is one addition, and dense, so that a burst of short texts stays in cache.

    Args:
        nbytes: size of the region, a multiple of `block_nbytes`.
        block_nbytes: size of a block, and of the largest range.
    """

    def __init__(self, nbytes: int, block_nbytes: int) -> None:
        if block_nbytes < 1 or nbytes < block_nbytes or nbytes % block_nbytes:
            raise ValueError(f"nbytes: expected a multiple of block_nbytes ({block_nbytes}), got {nbytes}")
        self._block_nbytes: Final = block_nbytes
        self._ranges = [0] * (nbytes // block_nbytes)
        self._free = list(range(nbytes // block_nbytes - 1, -1, -1))
        self._open = self._free.pop()
        self._fill = self._open * block_nbytes
        self.taken = 0
        """Ranges handed out and not yet freed; 0 at rest."""

    def take(self, nbytes: int) -> int:
        """Offset of a new range of `nbytes`, 0 to `block_nbytes`; `FULL` if there is no room."""
        nbytes = max(1, nbytes)  # an empty range at the end of a block would look like the next block's
        if self._fill + nbytes > (self._open + 1) * self._block_nbytes:
            if not self._free:
                return FULL
            self._open = self._free.pop()
            self._fill = self._open * self._block_nbytes
        offset = self._fill
        self._fill += nbytes
        self._ranges[self._open] += 1
        self.taken += 1
        return offset

    def free(self, offset: int) -> None:
        """Returns a range by its offset."""
        block = offset // self._block_nbytes
        left = self._ranges[block] = self._ranges[block] - 1
        self.taken -= 1
        if left < 0:
            raise AssertionError("a range was freed twice: this is a bug")
        if not left:
            if block == self._open:
                self._fill = block * self._block_nbytes
            else:
                self._free.append(block)
