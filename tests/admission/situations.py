"""A model, and what its rule may be told when it is asked."""

from __future__ import annotations

from typing import Any

from trioserve.admission import Rule, Situation

US = 1_000
MS = 1_000_000
NOW = 10**9
D = 200 * US


class Line:
    """S = 4 ms + 0.1 ms a row, with a deviation of 0.2 ms."""

    def mean_ns(self, units: float) -> float:
        return (4 + 0.1 * units) * MS

    def deviation_ns(self, units: float) -> float:
        return D

    def quantile_ns(self, units: float) -> float:
        return self.mean_ns(units) + 3 * D


S10 = 5 * MS


def rule(**changes: Any) -> Rule:
    """Batches of ten, 50 ms."""
    plain: dict[str, Any] = {"max_units": 10, "sla_ns": 50 * MS, "random": lambda: 0.5}
    return Rule(Line(), **plain | changes)


def situation(**changes: Any) -> Situation:
    """An executor that has just begun with a batch, and nothing waits."""
    plain = Situation(
        ahead=0,
        waiting=0,
        reserved=10,
        free_ns=[NOW + S10],
        idle=False,
        rate=0.0,
        rho=0.0,
        eta_ns=0,
        overtaken=0.0,
        left_share=0.0,
        deadlines_ns=None,
    )
    return plain._replace(**changes)


def behind(*deadlines_ms: float, **changes: Any) -> Situation:
    deadlines_ns = [NOW + int(after * MS) for after in deadlines_ms]
    ahead = changes.get("ahead", 0)
    every = {"deadlines_ns": lambda first, step: deadlines_ns[first::step]}
    return situation(**{"waiting": ahead + len(deadlines_ns)} | every | changes)
