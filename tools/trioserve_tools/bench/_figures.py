"""Figures: a measured value with its spread, and what it must reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trioserve_tools.targets import Target

from ._measure import Rounds, Spread


@dataclass(frozen=True, slots=True)
class Figure:
    """A value that has a target, or why it was not measured."""

    title: str
    unit: str
    target: Target
    spread: Spread | None = None
    """None if it was not measured."""

    reason: str = ""
    """Why not."""

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None if there is none."""
        return None if self.spread is None else self.target.met_by(self.spread.median)

    def record(self) -> dict[str, Any]:
        """The figure as JSON values."""
        measured = None if self.spread is None else self.spread.median
        return {
            "title": self.title,
            "unit": self.unit,
            "target": str(self.target),
            "median": measured,
            "rounds": [] if self.spread is None else list(self.spread.values),
            "met": self.met,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a part of the benchmark found."""

    name: str
    title: str
    figures: Sequence[Figure]
    rounds: Rounds = field(default_factory=dict)
    """Samples by subject, for parts that load servers."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What else is worth knowing, by what it is."""
