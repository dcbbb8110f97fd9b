"""What a measured value must reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A bound."""

    relation: Literal[">=", "<=", "="]
    bound: float

    def met_by(self, value: float) -> bool:
        """Whether a value is on the right side of it; what is not a number never is."""
        if self.relation == ">=":
            return value >= self.bound
        return value <= self.bound if self.relation == "<=" else value == self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


def number(value: float) -> str:
    """A value with about three digits, and all those before the point."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value):
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
