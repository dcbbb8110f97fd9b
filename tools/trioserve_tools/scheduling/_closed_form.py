"""Waiting on an idle executor, where the mean latency is known in closed form."""

from __future__ import annotations

from typing import Final, NamedTuple

from trioserve.batching import Greedy, Policy, ServiceModel, WaitForRows
from trioserve.testing import poisson, simulate

ALPHA_MS: Final = 10
"""Run time of every batch, whatever its size."""

EXPECTED: Final = (
    (0.25, 1.12, 1.68),
    (0.5, 1.23, 0.65),
    (1.0, 1.37, 0.16),
    (1.5, 1.44, 0.039),
    (2.0, 1.47, 0.0034),
    (2.5, 1.484, -0.0057),
    (3.0, 1.492, -0.0065),
    (5.0, 1.499, -0.0016),
)
"""Arrivals in one run time; greedy's mean latency in run times; how much longer waiting for a second request takes."""


class Waiting(NamedTuple):
    """One column of the table."""

    x: float
    greedy: float
    expected_greedy: float
    waiting: float
    expected_waiting: float


def waiting(*, requests: int) -> list[Waiting]:
    """Greedy and wait-for-two on Poisson arrivals and a constant run time."""
    return [
        Waiting(
            x,
            mean := _mean(Greedy(), x, requests),
            greedy,
            _mean(WaitForRows(2), x, requests) / mean - 1,
            longer,
        )
        for x, greedy, longer in EXPECTED
    ]


def _mean(policy: Policy, x: float, requests: int) -> float:
    """Mean latency in run times."""
    per_s = x / (ALPHA_MS / 1e3)
    result = simulate(
        policy,
        poisson(per_s, requests / per_s, 7),
        ServiceModel({1: ALPHA_MS * 1_000_000}),
        max_rows=1_000,
        sla_ns=10**13,
        noise=0.0,
        admission=False,
    )
    return result.mean_latency_ms() / ALPHA_MS
