"""Rows of one size that are ready to run, the most urgent first.

The queue holds slot numbers, never requests. A request of several rows is entered and leaves whole. Rows whose
request is answered while they wait (expired, cancelled) are taken out at once, because their slot is free then
and may be leased again: an entry never outlives its slot.

The order is that of a key: the deadline, rounded down to a grain, and for less important classes an offset. Nearly all
rows arrive in that order, because nearly all have the same time from arrival to deadline; so the queue is a list of
ranges of adjacent slots, and a row that belongs at the end costs one comparison. One that belongs in the middle splits
a range. The grain is there for clients whose deadlines differ by the microseconds between one line and the next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ._sums import Sums

Range = tuple[int, int]
"""First slot and number of slots."""

MAX_RANGES: Final = 1_000
"""Most ranges of one batch: what its descriptor can name."""

LOWEST_NS: Final = -(2**62)
BEHIND_ALL: Final = 2**62

KEY, FIRST, COUNT, OFFSET = range(4)
"""A range: the key of its first row, its first slot, its rows, and how far their keys are behind their deadlines."""


class RowQueue:
    """Earliest key first, as ranges of adjacent slots: for models whose rows all have one size.

    Args:
        block_rows: ranges are not joined across blocks of this many slots, so that a full block is one batch.
        deadline_ns: column over the slots, every row of a request included; read while the row waits.
        grain_ns: deadlines that differ by less count as the same; a power of two.
    """

    def __init__(self, block_rows: int, deadline_ns: Sequence[int], grain_ns: int = 1) -> None:
        self._grain_ns: Final = grain_ns
        self.grain_mask: Final = ~(grain_ns - 1)
        """What rounds a deadline down."""
        self._block_rows: Final = block_rows
        self._deadline_ns: Final = deadline_ns
        self._ranges: Final[list[list[int]]] = []
        """By key; the keys of one range ascend."""
        self._sums: Final = Sums(self._ranges, itemgetter(COUNT))
        self._offsets_ns: Final[set[int]] = set()
        """Offsets of rows that were here."""
        self._tail_ns = LOWEST_NS
        """No row has a later key."""
        self.rows = 0

    @property
    def head(self) -> int:
        """The slot that is served next; the queue must not be empty."""
        return self._ranges[0][FIRST]

    @property
    def head_key_ns(self) -> int:
        """Its key."""
        return self._ranges[0][KEY]

    def push(self, first: int, count: int, deadline_ns: int, offset_ns: int = 0) -> None:
        """Enters rows that have become ready, of one deadline but for the grain; they lie within one block.

        Args:
            first: their first slot.
            count: how many.
            deadline_ns: the deadline of one of them, as the column has it.
            offset_ns: how far behind it their key is.
        """
        key_ns = (deadline_ns & self.grain_mask) + offset_ns
        self.rows += count
        if key_ns < self._tail_ns:
            self._insert(key_ns, first, count, offset_ns)
            return
        self._tail_ns = key_ns
        ranges = self._ranges
        if ranges:
            last = ranges[-1]
            if last[1] + last[2] == first and first % self._block_rows and last[3] == offset_ns:
                last[2] += count
                return
        self._offsets_ns.add(offset_ns)
        ranges.append([key_ns, first, count, offset_ns])

    def _insert(self, key_ns: int, first: int, count: int, offset_ns: int) -> None:
        """Enters rows in the middle, behind those of the same key."""
        ranges = self._ranges
        self._offsets_ns.add(offset_ns)
        index = bisect_right(ranges, [key_ns, BEHIND_ALL])
        new = [[key_ns, first, count, offset_ns]]
        if index:
            before = ranges[index - 1]
            rows = self._rows_until(before, key_ns)
            if rows < before[COUNT]:
                new.append(self._cut_off(before, rows))
            elif before[FIRST] + rows == first and first % self._block_rows and before[OFFSET] == offset_ns:
                before[COUNT] += count
                self._sums.spliced(index - 1, 1, 1)
                return
            ranges[index:index] = new
            self._sums.spliced(index - 1, 1, 1 + len(new))
        else:
            ranges[:0] = new
            self._sums.spliced(0, 0, 1)

    def _rows_until(self, waiting: list[int], key_ns: int) -> int:
        """How many rows of a range, from its front, have no later key."""
        first = waiting[FIRST]
        later_ns = ((key_ns - waiting[OFFSET]) & self.grain_mask) + self._grain_ns
        return bisect_left(self._deadline_ns, later_ns, first, first + waiting[COUNT]) - first

    def _cut_off(self, waiting: list[int], rows: int) -> list[int]:
        """Shortens a range to its first rows and returns the rest."""
        first, offset_ns = waiting[FIRST] + rows, waiting[OFFSET]
        key_ns = (self._deadline_ns[first] & self.grain_mask) + offset_ns
        rest = [key_ns, first, waiting[COUNT] - rows, offset_ns]
        waiting[COUNT] = rows
        return rest

    # ---------------------------------------------------------------- taking

    def peek(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """The ranges of the next batch in service order, without taking them.

        Args:
            limit: the most rows; a first request of more is taken all the same.
            row_counts: per slot, the rows of the request that starts there; a request is not divided.
        """
        taken: list[Range] = []
        for _, first, count, _ in islice(self._ranges, MAX_RANGES):
            if count > limit:
                whole = _whole_requests(first, limit, row_counts) if limit else 0
                if whole or not taken:
                    taken.append((first, whole or int(row_counts[first])))
                break
            taken.append((first, count))
            limit -= count
        return taken

    def take(self, limit: int, row_counts: NDArray[np.uint16]) -> list[Range]:
        """Takes the next batch off the queue; see `peek`.

        Returns:
            Its ranges in the order of the slots, adjacent ones joined: of what is not divided any more, the order is
            free, and one range needs no gathering.
        """
        taken = self.peek(limit, row_counts)
        ranges = self._ranges
        last = taken[-1][1]
        old = whole = len(taken)
        if ranges[whole - 1][COUNT] > last:
            whole -= 1
            ranges[whole] = self._cut_off(ranges[whole], last)
        del ranges[:whole]
        if self._sums.lengths:
            self._sums.spliced(0, old, old - whole)
        self.rows -= sum([count for _, count in taken])
        if not self.rows:
            self._tail_ns = LOWEST_NS
        return taken if len(taken) == 1 else joined(taken, self._block_rows)

    def remove(self, first: int, count: int) -> bool:
        """Takes the rows of one answered request out; False if they do not wait here."""
        ranges = self._ranges
        index = self._find(first)
        if index < 0:
            return False
        waiting = ranges[index]
        before = first - waiting[FIRST]
        left = [waiting] if before else []
        if waiting[COUNT] - before - count:
            left.append(self._cut_off(waiting, before + count))
        waiting[COUNT] = before
        ranges[index : index + 1] = left
        self._sums.spliced(index, 1, len(left))
        self.rows -= count
        if not self.rows:
            self._tail_ns = LOWEST_NS
        return True

    def _find(self, first: int) -> int:
        """Which range holds a slot, -1 if none does."""
        ranges = self._ranges
        deadline_ns = self._deadline_ns[first] & self.grain_mask
        for offset_ns in self._offsets_ns:
            key_ns = deadline_ns + offset_ns
            low = bisect_left(
                ranges, [key_ns]
            )  # those of its key, and the one before, which may reach that far
            for index in range(max(0, low - 1), bisect_right(ranges, [key_ns, BEHIND_ALL], low)):
                if 0 <= first - ranges[index][FIRST] < ranges[index][COUNT]:
                    return index
        return -1

    # ---------------------------------------------------------------- what the scheduler asks

    def outlook(self, limit: int) -> tuple[int, bool]:
        """What the next batch would be if it were cut now: its rows, and whether it has no room for more.

        Args:
            limit: the most rows.
        """
        return min(self.rows, limit), self.rows >= limit

    def floor_deadline_ns(self, rows: int) -> int:
        """No deadline among the first so many rows is earlier, and one is hardly later; the queue must not be empty."""
        floor_ns = BEHIND_ALL
        for key_ns, _, count, offset_ns in self._ranges:
            floor_ns = min(floor_ns, key_ns - offset_ns)
            rows -= count
            if rows <= 0:
                break
        return floor_ns

    def head_deadline_ns(self, rows: int) -> int:
        """The earliest deadline among the first so many rows; the queue must not be empty."""
        deadline_ns = BEHIND_ALL
        column = self._deadline_ns
        for _, first, count, _ in self._ranges:
            taken = min(count, rows)
            deadline_ns = min(deadline_ns, min(column[first : first + taken]) if taken > 1 else column[first])
            rows -= count
            if rows <= 0:
                break
        return deadline_ns

    def oldest_ready_ns(self, rows: int, ready_ns: Sequence[int]) -> int:
        """When the first of the first so many rows became ready; the queue must not be empty.

        Args:
            rows: how many.
            ready_ns: column over the slots.
        """
        ranges = self._ranges
        oldest_ns = ready_ns[ranges[0][FIRST]]
        if len(ranges) > 1:
            for _, first, count, _ in ranges:
                oldest_ns = min(oldest_ns, ready_ns[first])
                rows -= count
                if rows <= 0:
                    break
        return oldest_ns

    def ahead(self, key_ns: int) -> int:
        """Rows whose key is not later."""
        if key_ns >= self._tail_ns:
            return self.rows
        index = bisect_right(self._ranges, [key_ns, BEHIND_ALL]) - 1
        return self._sums.before(index) + self._rows_until(self._ranges[index], key_ns) if index >= 0 else 0

    def deadlines(self, rows: int) -> list[int]:
        """Deadlines of the first so many rows, in service order."""
        deadlines: list[int] = []
        column = self._deadline_ns
        for _, first, count, _ in self._ranges:
            if count == 1:
                deadlines.append(column[first])
            else:
                deadlines += column[first : first + min(count, rows)]
            rows -= count
            if rows <= 0:
                break
        return deadlines

    def every(self, position: int, step: int, lesser_ns: int = BEHIND_ALL) -> list[int]:
        """Deadlines of every `step`-th row from number `position` on, in service order.

        Args:
            position: of the first.
            step: from one to the next.
            lesser_ns: rows whose keys are further behind their deadlines count as if they had none.
        """
        column = self._deadline_ns
        return [
            column[waiting[FIRST] + row] if waiting[OFFSET] <= lesser_ns else BEHIND_ALL
            for waiting, row in zip(*self._sums.every(position, step), strict=True)
        ]


def joined(ranges: Sequence[Range], block_rows: int) -> list[Range]:
    """Ranges in the order of their slots, with those made one that are adjacent and lie in one block."""
    result: list[Range] = []
    for first, count in sorted(ranges):
        if result and sum(result[-1]) == first and first % block_rows:
            result[-1] = (result[-1][0], result[-1][1] + count)
        else:
            result.append((first, count))
    return result


def _whole_requests(first: int, limit: int, row_counts: NDArray[np.uint16]) -> int:
    """The most rows, at most `limit`, from `first` on that end where a request ends."""
    end = first + limit
    while end > first and not row_counts[end]:
        end -= 1  # rows inside a request have count 0
    return end - first
