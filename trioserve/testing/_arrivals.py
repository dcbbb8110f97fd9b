"""Who asks for what and when, for the simulator: traces, and clients that wait for their replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True)
class Trace:
    """An open loop: requests that come whatever becomes of those before them."""

    at_ns: NDArray[np.int64]
    """When each request's header arrives, ascending, from 0."""
    timeout_ns: NDArray[np.int64] | None = None
    """From its arrival to its deadline; the default deadline if None."""
    body_ns: NDArray[np.int64] | None = None
    """From its arrival until its payload is complete; nothing if None."""
    retries: int = 0
    """How often a refused request comes again, each time when it is told to, with a new deadline."""
    classes: NDArray[np.uint8] | None = None
    """Class bits of each request, as on the wire; all of the default class if None."""
    tenants: NDArray[np.uint32] | None = None
    """A number for the tenant of each request; all of one if None."""

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def seconds(self) -> float:
        """Length of the trace."""
        return float(self.at_ns[-1]) / SECOND_NS if len(self.at_ns) else 0.0

    def __add__(self, other: Trace) -> Trace:
        """The other trace behind this one; both with the default deadline and complete payloads."""
        offset_ns = int(self.at_ns[-1]) if len(self.at_ns) else 0
        return Trace(np.concatenate([self.at_ns, other.at_ns + offset_ns]), retries=self.retries)


@dataclass(frozen=True)
class ClosedLoop:
    """Clients with one request outstanding each, who think between a reply and their next request."""

    clients: int
    think_ns: int
    """Mean time to think."""
    spread: float = 0.1
    """Standard deviation of the time to think, as a part of it."""
    seconds: float = 10.0
    """How long they go on."""


def poisson(per_s: float, seconds: float, seed: int = 0, *, retries: int = 0) -> Trace:
    """Independent arrivals.

    Args:
        per_s: mean rate.
        seconds: length of the trace.
        seed: of its randomness.
        retries: see `Trace`.
    """
    rng = np.random.default_rng([1, seed])
    count = int(per_s * seconds + 6 * np.sqrt(per_s * seconds) + 10)
    at_s = np.cumsum(rng.exponential(1 / per_s, count))
    return Trace((at_s[at_s < seconds] * SECOND_NS).astype(np.int64), retries=retries)


def constant(per_s: float, seconds: float) -> Trace:
    """One arrival after the other, at equal distances."""
    return Trace((np.arange(1, int(per_s * seconds) + 1) * (SECOND_NS / per_s)).astype(np.int64))


def bursty(
    per_s: float,
    seconds: float,
    seed: int = 0,
    *,
    ratio: float = 4.0,
    calm_s: float = 0.2,
    burst_s: float = 0.05,
) -> Trace:
    """A Markov-modulated Poisson process of two states.

    Args:
        per_s: mean rate over both.
        seconds: length of the trace.
        seed: of its randomness.
        ratio: rate in a burst over the rate between bursts.
        calm_s: mean time between bursts.
        burst_s: mean length of a burst.
    """
    rng = np.random.default_rng([2, seed])
    calm_per_s = per_s * (calm_s + burst_s) / (calm_s + ratio * burst_s)
    parts, start_s, in_burst = [], 0.0, False
    while start_s < seconds:
        length_s = rng.exponential(burst_s if in_burst else calm_s)
        mean = length_s * calm_per_s * (ratio if in_burst else 1.0)
        parts.append(start_s + length_s * rng.random(rng.poisson(mean)))
        start_s += length_s
        in_burst = not in_burst
    at_s = np.sort(np.concatenate(parts))
    return Trace((at_s[at_s < seconds] * SECOND_NS).astype(np.int64))
