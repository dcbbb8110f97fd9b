"""One batch, from its cut to its completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve_protocol import CutReason

if TYPE_CHECKING:
    from ._lane import Lane

Range = tuple[int, int]


class Batch:
    """Rows that are with a worker.

    Args:
        lane: their model.
        number: counts the batches of the server; in the timing trailer.
        ranges: (first slot, count) in service order.
        reason: why it was cut.
        cut_ns: when.
    """

    __slots__ = ("cut_ns", "lane", "number", "predicted_ns", "ranges", "reason", "rows")

    def __init__(self, lane: Lane, number: int, ranges: list[Range], reason: CutReason, cut_ns: int) -> None:
        self.lane = lane
        self.number = number
        self.ranges = ranges
        self.rows = sum(count for _, count in ranges)
        self.reason = reason
        self.cut_ns = cut_ns
        self.predicted_ns = 0
        """When it is expected to be finished."""

    def slot_at(self, position: int) -> int:
        """The slot of the batch's row number `position`."""
        for first, count in self.ranges:
            if position < count:
                return first + position
            position -= count
        raise AssertionError("a row position outside the batch: this is a bug")
