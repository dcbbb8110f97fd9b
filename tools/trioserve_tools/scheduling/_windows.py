"""Mean latency against the best of several fixed windows, which nobody knows beforehand."""

from __future__ import annotations

from typing import Final, NamedTuple

from trioserve.batching import Adaptive, FixedWindow, Policy
from trioserve.testing import Trace, bursty, constant, poisson, simulate

from ._models import MAX_ROWS, MS, capacity_per_s, line

WINDOWS_MS: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
FOREVER_NS: Final = 10**12


class WindowCases(NamedTuple):
    """What is compared."""

    models: tuple[tuple[float, float], ...]
    settings: tuple[tuple[int, str], ...]
    """Executors, and kind of arrivals."""
    loads: tuple[float, ...]


WINDOW_CASES: Final = WindowCases(
    ((4, 0.1), (0.3, 0.01), (1, 1), (20, 0.5)),
    ((1, "Poisson"), (1, "bursts"), (2, "Poisson"), (4, "Poisson")),
    (0.1, 0.3, 0.5, 0.7, 0.9),
)


def window_row(
    fixed_ms: float, row_ms: float, executors: int, kind: str, requests: int, seeds: int
) -> list[str]:
    """By load: by how much the mean latency differs from that of the best window, and which one that is."""
    cells = []
    for load in WINDOW_CASES.loads:
        per_s = load * executors * capacity_per_s(fixed_ms, row_ms)
        streams = [_stream(kind, per_s, requests / per_s, seed) for seed in range(seeds)]

        def mean(policy: Policy, streams: list[Trace] = streams) -> float:
            return sum(
                simulate(
                    policy,
                    stream,
                    line(fixed_ms, row_ms),
                    max_rows=MAX_ROWS,
                    sla_ns=FOREVER_NS,
                    executors=executors,
                    seed=seed,
                    admission=False,
                ).mean_latency_ms()
                for seed, stream in enumerate(streams)
            )

        best, window_ms = min((mean(FixedWindow(int(window_ms * MS))), window_ms) for window_ms in WINDOWS_MS)
        cells.append(f"{mean(Adaptive()) / best - 1:+.1%} ({window_ms:g} ms)")
    return cells


def _stream(kind: str, per_s: float, seconds: float, seed: int) -> Trace:
    if kind == "constant":
        return constant(per_s, seconds)
    if kind == "bursts":  # a rate of 1.5 in a burst would be an overload at every load above 0.6
        return bursty(per_s, seconds, seed, ratio=1.2, calm_s=seconds / 40, burst_s=seconds / 100)
    return poisson(per_s, seconds, seed)
