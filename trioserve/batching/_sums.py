"""How many rows are before each place of a long list, while it changes anywhere.

A queue is a list in the order of service, short or much the same from its front to its end as long as requests arrive
in that order. Where they do not, thousands of single rows may wait, and a sum over all of them for each arrival costs
more than serving it. So groups of entries are summed up, once somebody has asked, and a change costs one group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final, Generic, TypeVar

GROUP: Final = 64
"""Entries of a group when it is formed; one of more than twice as many is divided."""

Entry = TypeVar("Entry")


class Sums(Generic[Entry]):
    """Sums over a list that somebody else keeps, and who says where it has changed.

    Nothing is kept before the first question, and never of the last entries, so that what is entered at the end and
    what is never asked about costs nothing.

    Args:
        entries: the list.
        rows_of: the rows of an entry.
    """

    def __init__(self, entries: list[Entry], rows_of: Callable[[Entry], int]) -> None:
        self._entries: Final = entries
        self._rows_of: Final = rows_of
        self.lengths: Final[list[int]] = []
        """Entries of each group, from the front of the list."""
        self._sums: Final[list[int]] = []
        """Their rows."""

    def spliced(self, index: int, old: int, new: int) -> None:
        """Entries have been replaced, or have changed.

        Args:
            index: the first of them.
            old: how many there were.
            new: how many there are in their place.
        """
        if not self.lengths:
            return
        ends = list(accumulate(self.lengths))
        low = bisect_right(ends, index)
        high = bisect_left(ends, index + old, low)
        if high == len(ends):  # up to the entries that are in no group, or only these
            del self.lengths[low:], self._sums[low:]
        else:
            self._form(low, high + 1, ends[low - 1] if low else 0, ends[high] - old + new)
        if self.lengths and sum(self.lengths) >= len(self._entries):
            del self.lengths[-1], self._sums[-1]

    def _form(self, low: int, high: int, start: int, end: int) -> None:
        """Replaces some groups by those of a part of the list."""
        size = GROUP if end - start > 2 * GROUP else max(1, end - start)
        parts = [self._entries[at : min(at + size, end)] for at in range(start, end, size)]
        self.lengths[low:high] = map(len, parts)
        self._sums[low:high] = [sum(map(self._rows_of, part)) for part in parts]

    def before(self, index: int) -> int:
        """Rows of the entries before one."""
        self._extend()
        ends = list(accumulate(self.lengths))
        group = bisect_right(ends, index)
        start = ends[group - 1] if group else 0
        return sum(self._sums[:group]) + sum(map(self._rows_of, self._entries[start:index]))

    def _extend(self) -> None:
        """Forms groups of all but the last entries."""
        summed, entries = sum(self.lengths), len(self._entries)
        if entries - summed > 2 * GROUP:
            groups = len(self.lengths)
            self._form(groups, groups, summed, summed + (entries - summed - 1) // GROUP * GROUP)

    def every(self, position: int, step: int) -> tuple[list[Entry], list[int]]:
        """Every `step`-th row from number `position` on: the entry of each, and its number within that."""
        entries, rows_of = self._entries, self._rows_of
        found: list[Entry] = []
        numbers: list[int] = []
        for start, end, rows in self._stretches():
            if position >= rows:
                position -= rows
            elif rows == end - start:
                found += entries[start + position : end : step]
                numbers += [0] * (len(found) - len(numbers))
                position += -(-(rows - position) // step) * step - rows
            else:
                for entry in entries[start:end]:
                    count = rows_of(entry)
                    while position < count:
                        found.append(entry)
                        numbers.append(position)
                        position += step
                    position -= count
        return found, numbers

    def _stretches(self) -> list[tuple[int, int, int]]:
        """The list in parts: first entry, end, rows; adjacent groups whose entries are one row each are one part."""
        self._extend()
        start = single = 0
        parts: list[tuple[int, int, int]] = []
        for length, rows in zip(self.lengths, self._sums, strict=True):
            if rows == length:
                single += rows
            else:
                if single:
                    parts.append((start - single, start, single))
                    single = 0
                parts.append((start, start + length, rows))
            start += length
        if single:
            parts.append((start - single, start, single))
        parts.append((start, len(self._entries), sum(map(self._rows_of, self._entries[start:]))))
        return parts
