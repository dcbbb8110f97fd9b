"""Texts that the tokenizer has not been given yet, the most urgent first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ._batch import Range


class Untokenized:
    """Requests of one model in the order of their keys, those of one key in the order of their arrival.

    Who comes last has the last key where all have one time and one class; everything is at an end of the list then.
    """

    def __init__(self) -> None:
        self._order: Final[list[_Waiting]] = []
        self._waiting: Final[dict[int, _Waiting]] = {}
        """By first slot."""
        self._arrivals = 0
        self.rows = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._order)

    def __contains__(self, first: int) -> bool:
        """Whether the request waits that has this first slot."""
        return first in self._waiting

    def __iter__(self) -> Iterator[int]:
        """Their first slots, the most urgent first."""
        return iter([waiting.first for waiting in self._order])

    @property
    def head_key_ns(self) -> int:
        """The earliest key; something must wait."""
        return self._order[0].key_ns

    def push(self, first: int, rows: int, key_ns: int) -> None:
        """Enters one request.

        Args:
            first: its first slot.
            rows: its texts.
            key_ns: its place in the service order.
        """
        order = self._order
        waiting = self._waiting[first] = _Waiting(key_ns, self._arrivals, first, rows)
        self._arrivals += 1
        self.rows += rows
        if not order or order[-1] <= waiting:
            order.append(waiting)
        else:
            insort(order, waiting)

    def peek(self, most_rows: int) -> list[Range]:
        """The most urgent requests, as many as fit into so many rows, and at least one if any waits."""
        taken: list[Range] = []
        total = 0
        for waiting in self._order:
            if taken and total + waiting.rows > most_rows:
                break
            taken.append((waiting.first, waiting.rows))
            total += waiting.rows
        return taken

    def take(self, most_rows: int) -> list[Range]:
        """Takes them off; see `peek`."""
        taken = self.peek(most_rows)
        del self._order[: len(taken)]
        for first, rows in taken:
            del self._waiting[first]
            self.rows -= rows
        return taken

    def remove(self, first: int) -> bool:
        """Takes one answered request out; False if it does not wait here."""
        waiting = self._waiting.pop(first, None)
        if waiting is None:
            return False
        del self._order[bisect_left(self._order, waiting)]
        self.rows -= waiting.rows
        return True

    def ahead(self, key_ns: int) -> float:
        """About how many rows go before a request of such a key that comes now: as if all requests were of one size."""
        order = self._order
        if not order or order[-1].key_ns <= key_ns:
            return self.rows
        return self.rows * bisect_left(order, (key_ns + 1,)) / len(order)


class _Waiting(NamedTuple):
    """They are compared by key and arrival."""

    key_ns: int
    arrival: int
    first: int
    rows: int
