"""The models of the tables: what a batch of b rows costs, and what a request has for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from trioserve.batching import ServiceModel

MS: Final = 1_000_000
MAX_ROWS: Final = 32
SIZES: Final = (1, 2, 4, 8, 16, 32)
DEVIATION: Final = 0.056
"""Mean absolute deviation of a lognormal noise of 7 %."""


class Case(NamedTuple):
    """One model, and what is expected of it."""

    fixed_ms: float
    row_ms: float
    sla_ms: int
    at_2x: float
    """Goodput at twice the capacity, as a part of it, that the design promises."""
    at_10x: float
    highest: float
    """Highest load at which 99.9 % are in time, that it promises."""

    @property
    def name(self) -> str:
        """As the tables say it."""
        return f"{self.fixed_ms:g} + {self.row_ms:g} b, {self.sla_ms} ms"

    @property
    def service(self) -> ServiceModel:
        """As a warm-up would find it."""
        return line(self.fixed_ms, self.row_ms)

    @property
    def capacity_per_s(self) -> float:
        """Rows a second in full batches."""
        return capacity_per_s(self.fixed_ms, self.row_ms)


CASES: Final = (
    Case(4, 0.1, 50, 0.99, 0.99, 0.98),
    Case(0.3, 0.01, 5, 0.99, 0.99, 0.98),
    Case(0.3, 0.01, 50, 0.99, 0.99, 0.98),
    Case(1, 1, 200, 0.98, 0.98, 0.98),
    Case(20, 0.5, 200, 0.98, 0.98, 0.98),
    Case(1, 1, 50, 0.93, 0.93, 0.88),
    Case(20, 0.5, 50, 0.73, 0.94, 0.11),
)


def line(fixed_ms: float, row_ms: float) -> ServiceModel:
    """S(b) = fixed + row * b."""
    means = {size: round((fixed_ms + row_ms * size) * MS) for size in SIZES}
    return ServiceModel(means, {size: round(mean * DEVIATION) for size, mean in means.items()})


def capacity_per_s(fixed_ms: float, row_ms: float) -> float:
    """Rows a second in full batches."""
    return MAX_ROWS / (fixed_ms + row_ms * MAX_ROWS) * 1e3
