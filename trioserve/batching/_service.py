"""How long a batch runs: a straight line through the warm-up, scaled by what is seen in service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GAIN: Final = 1 / 32
"""Weight of one batch in the running scale: a drift shows within some tens of batches, one outlier does not."""

CLIP: Final = 4.0
"""A sample counts for at most this multiple of its prediction: a stall of the machine is not a slow model."""


class ServiceModel:
    """Predicts S(b) = scale x (fixed + per_row x b).

    Args:
        warmup_ns: measured run time by rows; without it nothing is predicted and batches are cut greedily.
    """

    def __init__(self, warmup_ns: Mapping[int, int]) -> None:
        self.scale = 1.0
        self.fixed_ns = self.per_row_ns = 0.0
        if warmup_ns:
            few, many = min(warmup_ns), max(warmup_ns)
            if many > few:
                self.per_row_ns = max(0.0, (warmup_ns[many] - warmup_ns[few]) / (many - few))
            self.fixed_ns = max(0.0, warmup_ns[few] - self.per_row_ns * few)

    def predict_ns(self, rows: int) -> float:
        """Expected run time of a batch of `rows`, nanoseconds; 0 while nothing is known."""
        return self.scale * (self.fixed_ns + self.per_row_ns * rows)

    def observe(self, rows: int, run_ns: int) -> None:
        """Learns from a finished batch."""
        base = self.fixed_ns + self.per_row_ns * rows
        if base > 0:
            ratio = min(run_ns / base, CLIP * self.scale)
            self.scale += GAIN * (ratio - self.scale)
