"""What a scheduler asks of the rows that wait: their queue, and the columns of their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Queue(Protocol):
    """Rows that are ready to run, in service order: by key, which is the deadline for all of one class."""

    rows: int

    def outlook(self, limit: int) -> tuple[int, bool]:
        """Rows of the next batch of at most `limit` if it were cut now, and whether it has no room for more."""
        ...

    def floor_deadline_ns(self, rows: int) -> int:
        """No deadline among the first so many rows is earlier, and one is hardly later; cheaper to find."""
        ...

    def head_deadline_ns(self, rows: int) -> int:
        """The earliest deadline among the first so many rows; the queue must not be empty."""
        ...

    def oldest_ready_ns(self, rows: int, ready_ns: Sequence[int]) -> int:
        """When the first of the first so many rows became ready; the queue must not be empty."""
        ...

    def ahead(self, key_ns: int) -> int:
        """Rows whose key is not behind `key_ns`."""
        ...

    def deadlines(self, rows: int) -> Sequence[int]:
        """Deadlines of the first so many rows that one batch may hold, in service order."""
        ...

    def every(self, position: int, step: int, lesser_ns: int) -> Sequence[int]:
        """Deadlines of every `step`-th row from number `position` on, in service order.

        Rows whose keys are more than `lesser_ns` behind their deadlines have none that anybody looks at.
        """
        ...


class Columns(Protocol):
    """What is known of each slot; `trioserve.memory.SlotTable` has it."""

    @property
    def ready_ns(self) -> Sequence[int]:
        """When each was ready to run."""
        ...
