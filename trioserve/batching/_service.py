"""How long a batch runs: a straight line through the warm-up, scaled by what is seen in service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GAIN: Final = 1 / 32
"""Weight of one batch in the running scale: a drift shows within some tens of batches, one outlier does not."""

CLIP: Final = 4.0
"""A sample counts for at most this multiple of its prediction: a stall of the machine is not a slow model."""


class ServiceModel:
    """Predicts S(n) = scale x (fixed + per_unit x n).

    A unit is what the run time of a batch grows with: a row, or, where rows differ in length, a token, padding
    included.

    Args:
        warmup_ns: measured run time by units. Without it nothing is predicted before the first batch has come back,
            and until then batches are cut greedily.
    """

    def __init__(self, warmup_ns: Mapping[int, int]) -> None:
        self.scale = 1.0
        self.fixed_ns = self.per_unit_ns = 0.0
        if warmup_ns:
            few, many = min(warmup_ns), max(warmup_ns)
            if many > few:
                self.per_unit_ns = max(0.0, (warmup_ns[many] - warmup_ns[few]) / (many - few))
            self.fixed_ns = max(0.0, warmup_ns[few] - self.per_unit_ns * few)

    def predict_ns(self, units: float) -> float:
        """Expected run time of a batch of so many units, nanoseconds; 0 while nothing is known."""
        return self.scale * (self.fixed_ns + self.per_unit_ns * units)

    def observe(self, units: float, run_ns: int) -> None:
        """Learns from a finished batch."""
        base = self.fixed_ns + self.per_unit_ns * units
        if base > 0:
            ratio = min(run_ns / base, CLIP * self.scale)
            self.scale += GAIN * (ratio - self.scale)
        else:
            self.fixed_ns = float(run_ns)
