"""Rows that are ready to run, in service order.

Both queues hold slot numbers, never requests. A request of several rows is entered and leaves whole. Rows whose
request is answered while they wait (expired, cancelled) are taken out at once, because their slot is free then
and may be leased again: an entry never outlives its slot.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
"""First slot and number of slots."""

MAX_RANGES: Final = 1_000
"""Most ranges of one batch: what its descriptor can name."""


class ArrivalQueue:
    """First come, first served, as contiguous ranges: for models whose rows all have one size.

    Args:
        block_rows: ranges are not joined across blocks of this many slots, so that a full block is one batch.
    """

    def __init__(self, block_rows: int) -> None:
        self._block_rows: Final = block_rows
        self._ranges: deque[list[int]] = deque()
        self.rows = 0

    @property
    def head(self) -> int:
        """The slot that has waited longest; the queue must not be empty."""
        return self._ranges[0][0]

    def push(self, first: int, count: int) -> None:
        """Enters rows that have become ready; they lie within one block."""
        self.rows += count
        ranges = self._ranges
        if ranges:
            last = ranges[-1]
            if last[0] + last[1] == first and first % self._block_rows:
                last[1] += count
                return
        ranges.append([first, count])

    def peek(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """The ranges of the next batch, without taking them.

        Args:
            limit: the most rows; a first request of more is taken all the same.
            row_counts: per slot, the rows of the request that starts there; a request is not divided.
        """
        taken: list[Range] = []
        for first, count in islice(self._ranges, MAX_RANGES):
            if count > limit:
                whole = _whole_requests(first, limit, row_counts)
                if whole or not taken:
                    taken.append((first, whole or int(row_counts[first])))
                break
            taken.append((first, count))
            limit -= count
        return taken

    def take(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """Takes the next batch off the queue; see `peek`."""
        taken = self.peek(limit, row_counts)
        for _, count in taken:
            head = self._ranges[0]
            if head[1] == count:
                self._ranges.popleft()
            else:
                head[0] += count
                head[1] -= count
            self.rows -= count
        return taken

    def remove(self, first: int, count: int) -> bool:
        """Takes the rows of one answered request out; False if they do not wait here."""
        found = next((waiting for waiting in self._ranges if 0 <= first - waiting[0] < waiting[1]), None)
        if found is None:
            return False
        start, length = found
        before, after = first - start, start + length - first - count
        index = self._ranges.index(found)
        del self._ranges[index]
        if after:
            self._ranges.insert(index, [first + count, after])
        if before:
            self._ranges.insert(index, [start, before])
        self.rows -= count
        return True


class LengthQueue:
    """First come, first served within length buckets: for models whose rows differ in length.

    A batch is padded to its longest row, so mixing lengths pays for the longest with every row. The bucket of the
    request that has waited longest is served next.

    Args:
        buckets: upper bounds of the buckets in tokens, ascending; the last holds all that is longer.
        lengths: column over the slots: tokens in the row.
        block_rows: ranges are not joined across blocks of this many slots.
        max_tokens: token budget of a batch, 0 for none; a single request is always allowed.
        padded: whether a batch costs rows x longest row (padded) or the sum of its rows (packed).
    """

    def __init__(
        self,
        buckets: tuple[int, ...],
        lengths: NDArray[np.uint32],
        *,
        block_rows: int,
        max_tokens: int,
        padded: bool,
    ) -> None:
        self._bounds: Final = np.array(buckets[:-1], np.uint32)
        self._lengths: Final = lengths
        self._block_rows: Final = block_rows
        self._max_tokens: Final = max_tokens
        self._padded: Final = padded
        self._buckets: Final[list[dict[int, _Waiting]]] = [{} for _ in buckets]
        self._arrivals = 0
        self.rows = 0

    @property
    def head(self) -> int:
        """The first slot of the request that has waited longest; the queue must not be empty."""
        return next(iter(self._oldest_bucket()))

    def push(self, first: int, count: int) -> None:
        """Enters one request that has become ready, with all its rows."""
        lengths = self._lengths[first : first + count]
        waiting = _Waiting(self._arrivals, count, int(lengths.max()), int(lengths.sum()))
        self._bucket_of(waiting.longest)[first] = waiting
        self._arrivals += 1
        self.rows += count

    def peek(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """The ranges of the next batch, without taking them.

        Args:
            limit: the most rows; a first request of more is taken all the same.
            row_counts: not needed here: requests are entered whole.
        """
        del row_counts
        return self._joined(self._next_batch(limit)[0])

    def outlook(self, limit: int) -> tuple[int, bool]:
        """What the next batch would be if it were cut now.

        Args:
            limit: the most rows.

        Returns:
            Its rows, and whether it is full: no room, in rows or in tokens, for the next of its bucket.
        """
        taken, full = self._next_batch(limit)
        rows = sum(count for _, count in taken)
        return rows, full or rows >= limit

    def _next_batch(self, limit: int) -> tuple[list[Range], bool]:
        taken: list[Range] = []
        rows = longest = total = 0
        for first, waiting in self._oldest_bucket().items():
            rows += waiting.rows
            longest, total = max(longest, waiting.longest), total + waiting.total
            cost = longest * rows if self._padded else total
            over = rows > limit or len(taken) == MAX_RANGES or (self._max_tokens and cost > self._max_tokens)
            if taken and over:
                return taken, True
            taken.append((first, waiting.rows))
        return taken, False

    def take(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """Takes the next batch off the queue; see `peek`."""
        del row_counts
        taken, _ = self._next_batch(limit)
        for first, count in taken:
            self.remove(first, count)
        return self._joined(taken)

    def remove(self, first: int, count: int) -> bool:
        """Takes one answered request out; False if it does not wait here."""
        longest = int(self._lengths[first : first + count].max())
        if self._bucket_of(longest).pop(first, None) is None:
            return False
        self.rows -= count
        return True

    def _joined(self, requests: list[Range]) -> list[Range]:
        """One range for requests that lie behind each other in a block."""
        ranges: list[Range] = []
        for first, count in requests:
            if ranges and sum(ranges[-1]) == first and first % self._block_rows:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
            else:
                ranges.append((first, count))
        return ranges

    def _bucket_of(self, longest: int) -> dict[int, _Waiting]:
        return self._buckets[int(np.searchsorted(self._bounds, longest))]

    def _oldest_bucket(self) -> dict[int, _Waiting]:
        return min(
            (bucket for bucket in self._buckets if bucket),
            key=lambda bucket: next(iter(bucket.values())).arrival,
        )


class _Waiting(NamedTuple):
    """One request in a `LengthQueue`."""

    arrival: int
    rows: int
    longest: int
    total: int


def _whole_requests(first: int, limit: int, row_counts: NDArray[np.uint16]) -> int:
    """The most rows, at most `limit`, from `first` on that end where a request ends."""
    end = first + limit
    while end > first and not row_counts[end]:
        end -= 1  # rows inside a request have count 0
    return end - first
