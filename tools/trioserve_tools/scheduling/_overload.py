"""What is left of the capacity when too much is offered, and how much may be offered before anything is late."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trioserve.batching import Adaptive
from trioserve.testing import Simulation, Trace, poisson, simulate

from ._models import MAX_ROWS, MS, Case

WARM_UP: Final = 0.1
"""Part of a run that is not counted: at first the queue is empty."""

SETTLING: Final = 0.25
"""Part of a run that is not counted for the highest load: at first the margins know nothing of the model."""

IN_SLA: Final = 0.999
STEP: Final = 0.01


class Overload(NamedTuple):
    """What a run at a multiple of the capacity found; shares are of the requests, goodput of the capacity."""

    load: float
    goodput: float
    late: float
    """Executed, but too late, of the admitted."""
    dropped: float
    """Admitted, and not executed, of the admitted."""
    left_room: float
    """Refused although a later batch had a free place and ended in time, of the refused."""
    p99_ms: float


def overload(case: Case, load: float, *, requests: int, seed: int = 0) -> Overload:
    """Runs a Poisson stream at a multiple of the capacity.

    Args:
        case: the model.
        load: the multiple.
        requests: how many are served in about; so many more are offered as the load is above 1.
        seed: of the stream and of the run times.
    """
    seconds = requests / case.capacity_per_s
    result = _run(case, poisson(load * case.capacity_per_s, seconds, seed), seed)
    # Behind the end of the stream there is always room.
    steady = result.between(0.0, seconds - case.sla_ms / 1e3)
    admitted, refused = max(1, result.admitted), max(1, steady.shed)
    return Overload(
        load,
        result.goodput_per_s(WARM_UP * seconds) / case.capacity_per_s,
        result.late / admitted,
        result.dropped / admitted,
        steady.sheds_that_left_room(MAX_ROWS) / refused,
        result.latency_ms(99),
    )


def highest_load(case: Case, *, requests: int, seed: int = 0) -> float:
    """The highest multiple of the capacity, in steps of 0.01, at which 99.9 % are answered in time."""
    low, high = 0, round(1 / STEP)
    while high - low > 1:
        middle = (low + high) // 2
        per_s = middle * STEP * case.capacity_per_s
        seconds = requests / per_s
        result = _run(case, poisson(per_s, seconds, seed), seed).between(SETTLING * seconds)
        if result.in_time >= IN_SLA:
            low = middle
        else:
            high = middle
    return low * STEP


def recovery_s(case: Case, *, retries: int, overload_s: float, seed: int = 0) -> float:
    """How long after ten times the capacity, at 0.7 times of it, requests are still refused or late.

    Args:
        case: the model.
        retries: how often a refused request comes again.
        overload_s: length of the overload; three times as much follows.
        seed: of the stream and of the run times.
    """
    burst = poisson(10 * case.capacity_per_s, overload_s, seed, retries=retries)
    stream = burst + poisson(0.7 * case.capacity_per_s, 3 * overload_s, seed + 1)
    result = _run(case, stream, seed)
    lost = result.at_ns[result.state != 0]
    return max(0.0, float(lost.max() - burst.at_ns[-1]) / 1e9) if lost.size else 0.0


def _run(case: Case, stream: Trace, seed: int) -> Simulation:
    return simulate(Adaptive(), stream, case.service, max_rows=MAX_ROWS, sla_ns=case.sla_ms * MS, seed=seed)


def mean_of(runs: list[Overload]) -> Overload:
    """Means over several seeds."""
    return Overload(*np.mean(np.array(runs), axis=0).tolist())
