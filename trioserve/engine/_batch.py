"""One batch, from its cut to its completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trioserve_protocol import CutReason

if TYPE_CHECKING:
    from ._lane import Lane
    from ._occupancy import Cut

Range = tuple[int, int]


class Batch:
    """Rows that are with a worker.

    Args:
        lane: their model.
        number: counts the batches of its worker; in the timing trailer.
        ranges: (first slot, count) in service order.
        reason: why it was cut.
        cut_ns: when.
    """

    __slots__ = (
        "abandoned",
        "cut",
        "cut_ns",
        "head_ns",
        "lane",
        "number",
        "predicted_ns",
        "ranges",
        "reason",
        "rows",
        "suspect",
        "units",
    )

    def __init__(self, lane: Lane, number: int, ranges: list[Range], reason: CutReason, cut_ns: int) -> None:
        self.lane = lane
        self.number = number
        self.ranges = ranges
        self.rows = sum([count for _, count in ranges])
        self.units = self.rows
        """What its run time grows with: rows, or tokens."""
        self.reason = reason
        self.cut_ns = cut_ns
        self.suspect: bytes | None = None
        """What its only request is known by, if that is suspected of killing workers."""
        self.abandoned = False
        """Whether the worker was told that nobody waits for it any more."""
        self.cut: Cut | None = None
        """What the scheduler noted of it."""
        self.head_ns = 0
        """Its earliest deadline."""
        self.predicted_ns = 0
        """When it is expected to be finished."""

    @property
    def expected_ns(self) -> float:
        """How long it is expected to run; 0 if that is not known."""
        service = self.lane.service
        return service.mean_ns(self.units) if service.known else 0.0


def slot_at(ranges: Sequence[Range], position: int) -> int:
    """The slot of row number `position` of some ranges."""
    for first, count in ranges:
        if position < count:
            return first + position
        position -= count
    raise AssertionError("a row position outside the batch: this is a bug")
