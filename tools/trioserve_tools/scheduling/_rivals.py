"""Every policy on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from trioserve.batching import (
    Adaptive,
    AdditiveIncrease,
    Cork,
    FixedWindow,
    Greedy,
    JustInTime,
    Policy,
    PreferredSizes,
)
from trioserve.testing import ClosedLoop, Trace, bursty, constant, poisson, simulate

from ._models import MAX_ROWS, MS, capacity_per_s, line

Arrivals = Trace | ClosedLoop


class Rival(NamedTuple):
    """A policy and how it is run."""

    name: str
    make: Callable[[], Policy]
    depth: int = 1
    admission: bool = False


FIXED_MS, ROW_MS, SLA_MS = 4.0, 0.1, 50
CAPACITY_PER_S: Final = capacity_per_s(FIXED_MS, ROW_MS)

ADAPTIVE: Final = Rival("trioserve", Adaptive, admission=True)
RIVALS: Final = (
    ADAPTIVE,
    Rival("greedy (TEI)", Greedy),
    *(
        Rival(f"fixed window {window_ms:g} ms", partial(FixedWindow, int(window_ms * MS)))
        for window_ms in (0.25, 0.5, 1, 2, 5)
    ),
    Rival("Triton: 2 ms, preferred 8, 16, 32", partial(PreferredSizes, 2 * MS, (8, 16, 32))),
    Rival("TensorFlow: just in time", JustInTime, depth=3),
    Rival("BentoML: CORK", partial(Cork, SLA_MS * MS)),
    Rival("Clipper: AIMD", partial(AdditiveIncrease, SLA_MS * MS // 2)),
)


def traces(seconds: float) -> dict[str, Arrivals]:
    """The arrivals, by what the tables call them."""
    pages = np.sort(np.concatenate([session(seconds, seed).at_ns for seed in range(4)]))
    return {
        "Poisson, 0.3": poisson(0.3 * CAPACITY_PER_S, seconds, 1),
        "Poisson, 0.9": poisson(0.9 * CAPACITY_PER_S, seconds, 2),
        "constant, 0.6": constant(0.6 * CAPACITY_PER_S, seconds),
        "bursts, 0.4": bursty(0.4 * CAPACITY_PER_S, seconds, 3),
        "2 clients": ClosedLoop(2, MS // 5, seconds=seconds),
        "8 clients": ClosedLoop(8, MS // 5, seconds=seconds),
        "pages": Trace(pages),
        "recorded": recorded(seconds),
    }


def recorded(seconds: float) -> Trace:
    """What a server has recorded of ten clients (`record` in its configuration), its beginning."""
    with np.load(Path(__file__).with_name("recorded.npz")) as members:
        at_ns = np.cumsum(members["gaps_us"].astype(np.int64)) * 1_000
    return Trace(at_ns[at_ns < seconds * 1e9])


def session(seconds: float, seed: int) -> Trace:
    """One user's requests: pages of some requests close to each other, and long pauses between the pages."""
    rng = np.random.default_rng([4, seed])
    pages_s = np.cumsum(rng.exponential(0.1, int(20 * seconds) + 20))
    requests_s = [page_s + np.cumsum(rng.exponential(3e-4, 1 + rng.poisson(7))) for page_s in pages_s]
    at_s = np.sort(np.concatenate(requests_s))
    return Trace((at_s[at_s < seconds] * 1e9).astype(np.int64))


def overloaded(load: float, seconds: float) -> Trace:
    """A Poisson stream of a multiple of the capacity."""
    return poisson(load * CAPACITY_PER_S, seconds, 4)


class Outcome(NamedTuple):
    """What a policy made of some arrivals."""

    mean_ms: float
    p99_ms: float
    per_s: float
    """Answered in time."""


def outcome(rival: Rival, arrivals: Arrivals, sla_ms: int = SLA_MS) -> Outcome:
    """Runs one policy."""
    result = simulate(
        rival.make(),
        arrivals,
        line(FIXED_MS, ROW_MS),
        max_rows=MAX_ROWS,
        sla_ns=sla_ms * MS,
        seed=1,
        depth=rival.depth,
        admission=rival.admission,
    )
    return Outcome(result.mean_latency_ms(), result.latency_ms(99), result.goodput_per_s())
