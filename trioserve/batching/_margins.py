"""How careful to be, learnt from what came too late; never from how wrong predictions are.

A margin that follows the prediction errors runs away: carefulness makes smaller batches, whose errors are larger in
proportion. What counts is whether promises were kept, and only where they were at stake.
"""

from __future__ import annotations

from typing import Final

MISSED: Final = 0.002
"""Share of the admitted with a near deadline that may miss it."""

LATE: Final = 0.005
"""Share of a batch with a near deadline that may come too late."""

LATE_STEP: Final = 0.5
MOST_STEP: Final = 0.1
"""Of `z`, for one batch. A stall of the machine makes whole batches late and says nothing of how run times scatter:
five took the margin to its maximum, from where it came back after two thousand. In the simulator, where nothing
stalls, goodput and misses are the same with and without."""

FIRST_Z: Final = 3.5
LEAST_Z: Final = 1.0
MOST_Z: Final = 8.0
FIRST_KG: Final = 0.5
LEAST_KG: Final = 0.25
MOST_KG: Final = 1.2


class Margins:
    """`z`, in mean deviations, for admission; `kg`, in quantile distances, for the cut."""

    __slots__ = ("kg", "z")

    def __init__(self) -> None:
        self.z = FIRST_Z
        self.kg = FIRST_KG

    def promised(self, near: int, missed: int) -> None:
        """Learns from admitted requests that have ended.

        Args:
            near: how many of them were admitted with little time to spare.
            missed: how many of those were answered late or dropped.
        """
        if near:
            self.z = min(MOST_Z, max(LEAST_Z, self.z + min(MOST_STEP, missed / near) - MISSED))

    def cut(self, rows: int, late: int) -> None:
        """Learns from a batch whose head was close to its deadline, or that was late.

        Args:
            rows: its rows.
            late: how many of them came too late.
        """
        self.kg = min(MOST_KG, max(LEAST_KG, self.kg + LATE_STEP * (late / rows - LATE)))
