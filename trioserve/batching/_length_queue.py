"""Rows of different lengths that are ready to run, the most urgent first within each class of lengths."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._queue import BEHIND_ALL, MAX_RANGES, Range, joined
from ._sums import Sums


class LengthQueue:
    """Earliest key first within length buckets: for models whose rows differ in length.

    A batch is padded to its longest row, so mixing lengths pays for the longest with every row. The bucket of the
    most urgent request is served next.

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
        self._buckets: Final[list[list[_Waiting]]] = [[] for _ in buckets]
        """Requests by key, and those of one key by arrival."""
        self._order: Final[list[_Waiting]] = []
        """Those of all buckets in the same order."""
        self._sums: Final = Sums(self._order, attrgetter("rows"))
        self._waiting: Final[dict[int, tuple[int, _Waiting]]] = {}
        """First slot -> bucket and request."""
        self._arrivals = 0
        self.grain_mask: Final = -1
        """Deadlines are not rounded."""
        self.rows = 0

    @property
    def head(self) -> int:
        """The first slot of the request that is served next; the queue must not be empty."""
        return self._next_bucket()[0].first

    @property
    def head_key_ns(self) -> int:
        """Its key."""
        return self._next_bucket()[0].key_ns

    def push(self, first: int, count: int, deadline_ns: int, offset_ns: int = 0) -> None:
        """Enters one request that has become ready, with all its rows.

        Args:
            first: its first slot.
            count: its rows.
            deadline_ns: its deadline.
            offset_ns: how far behind it its key is.
        """
        lengths = self._lengths[first : first + count]
        longest, total = int(lengths.max()), int(lengths.sum())
        waiting = _Waiting(deadline_ns + offset_ns, self._arrivals, first, count, longest, total, deadline_ns)
        index = int(np.searchsorted(self._bounds, longest))
        self._waiting[first] = index, waiting
        self._arrivals += 1
        self.rows += count
        bucket, order = self._buckets[index], self._order
        if not order or order[-1] <= waiting:
            bucket.append(waiting)
            order.append(waiting)
        else:
            insort(bucket, waiting)
            place = bisect_left(order, waiting)
            order.insert(place, waiting)
            self._sums.spliced(place, 0, 1)

    # ---------------------------------------------------------------- taking

    def peek(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """The ranges of the next batch in service order, without taking them.

        Args:
            limit: the most rows; a first request of more is taken all the same.
            row_counts: not needed here: requests are entered whole.
        """
        del row_counts
        return [(waiting.first, waiting.rows) for waiting in self._next_batch(limit)[0]]

    def outlook(self, limit: int) -> tuple[int, bool]:
        """What the next batch would be if it were cut now.

        Args:
            limit: the most rows.

        Returns:
            Its rows, and whether it is full: no room, in rows or in tokens, for the next of its bucket.
        """
        taken, full = self._next_batch(limit)
        rows = sum([waiting.rows for waiting in taken])
        return rows, full or rows >= limit

    def _next_batch(self, limit: int) -> tuple[list[_Waiting], bool]:
        taken: list[_Waiting] = []
        rows = longest = total = 0
        for waiting in self._next_bucket():
            rows += waiting.rows
            longest, total = max(longest, waiting.longest), total + waiting.total
            cost = longest * rows if self._padded else total
            over = rows > limit or len(taken) == MAX_RANGES or (self._max_tokens and cost > self._max_tokens)
            if taken and over:
                return taken, True
            taken.append(waiting)
        return taken, False

    def take(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """Takes the next batch off the queue; see `peek`.

        Returns:
            Its ranges in the order of the slots, adjacent ones joined.
        """
        del row_counts
        taken, _ = self._next_batch(limit)
        del self._next_bucket()[: len(taken)]
        for waiting in taken:
            del self._waiting[waiting.first]
            self.rows -= waiting.rows
        order, gone = self._order, {waiting.first for waiting in taken}
        upto = bisect_right(order, taken[-1])
        left = [waiting for waiting in order[:upto] if waiting.first not in gone]
        order[:upto] = left
        self._sums.spliced(0, upto, len(left))
        return joined([(waiting.first, waiting.rows) for waiting in taken], self._block_rows)

    def remove(self, first: int, count: int) -> bool:
        """Takes one answered request out; False if it does not wait here."""
        found = self._waiting.pop(first, None)
        if found is None:
            return False
        bucket = self._buckets[found[0]]
        del bucket[bisect_left(bucket, found[1])]
        place = bisect_left(self._order, found[1])
        del self._order[place]
        self._sums.spliced(place, 1, 0)
        self.rows -= count
        return True

    # ---------------------------------------------------------------- what the scheduler asks

    def head_deadline_ns(self, rows: int) -> int:
        """The earliest deadline among the first so many rows; the queue must not be empty."""
        return min(self.deadlines(rows))

    floor_deadline_ns = head_deadline_ns

    def oldest_ready_ns(self, rows: int, ready_ns: Sequence[int]) -> int:
        """When the first of the first so many rows became ready; the queue must not be empty."""
        return min([ready_ns[waiting.first] for waiting in self._next_bucket()[:rows]])

    def ahead(self, key_ns: int) -> int:
        """Rows whose key is not later."""
        return self._sums.before(bisect_right(self._order, (key_ns, BEHIND_ALL)))

    def deadlines(self, rows: int) -> list[int]:
        """Deadlines of the first so many rows of the bucket that is served next, in service order."""
        deadlines: list[int] = []
        for waiting in self._next_bucket():
            deadlines += [waiting.deadline_ns] * waiting.rows
            if len(deadlines) >= rows:
                break
        return deadlines[:rows]

    def every(self, position: int, step: int, lesser_ns: int = BEHIND_ALL) -> list[int]:
        """Deadlines of every `step`-th row from number `position` on, by key; see `RowQueue.every`."""
        return [
            waiting.deadline_ns if waiting.key_ns - waiting.deadline_ns <= lesser_ns else BEHIND_ALL
            for waiting in self._sums.every(position, step)[0]
        ]

    def _next_bucket(self) -> list[_Waiting]:
        return min([bucket for bucket in self._buckets if bucket], key=_head_of)


class _Waiting(NamedTuple):
    """One request in a `LengthQueue`; they are compared by key and arrival."""

    key_ns: int
    arrival: int
    first: int
    rows: int
    longest: int
    total: int
    deadline_ns: int


def _head_of(bucket: list[_Waiting]) -> _Waiting:
    return bucket[0]
