"""What a batch costs, by measurement: gather or split, and how many batches a worker should hold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH: Final = 3
"""Batches with a worker at a time. More only bind rows earlier than they need to be."""

MIN_DEPTH: Final = 2
"""One batch that runs and one behind it."""

GATHER_RANGE_NS: Final = 1_500
"""Fixed cost of gathering one more range, two copies of a few rows by numpy (measured)."""


class Costs(NamedTuple):
    """The parts of a batch's cost that decide how several ranges are run."""

    call_ns: float
    """Cost of one more call of the model, whatever its rows."""

    copy_ns_per_byte: float
    """Cost of copying a byte of the rows to where they are gathered."""

    def prefers_gather(self, n_ranges: int, nbytes: int) -> bool:
        """Whether copying the rows together is predicted cheaper than one call of the model a range.

        Args:
            n_ranges: Ranges of the batch, at least 2.
            nbytes: Bytes of its input and output rows.
        """
        split_ns = (n_ranges - 1) * self.call_ns
        gather_ns = n_ranges * GATHER_RANGE_NS + nbytes * self.copy_ns_per_byte
        return gather_ns <= split_ns


def call_cost_ns(service_ns: Mapping[int, int]) -> float:
    """The part of the service time that does not depend on the rows, nanoseconds.

    It is the intercept of the line through the smallest and the largest batch measured, never below 0. Nothing
    measured: infinite, since a batch of several ranges is then best run in one call.
    """
    if not service_ns:
        return float("inf")
    small, large = min(service_ns), max(service_ns)
    if small == large:
        return float(service_ns[small])
    slope: float = (service_ns[large] - service_ns[small]) / (large - small)
    return max(0.0, service_ns[small] - slope * small)


def choose_depth(hop_ns: int, service_ns: int) -> int:
    """How many batches a worker should hold, so that it does not idle between two.

    Two at least, however long a batch runs: the next one is sent shortly before the running one is done, and while the
    server waits for a processor the worker has something to do. A text model with batches of 16 ms, on two processors
    with its clients, was served at .93 and .89 of direct calls with one batch, at .98 and .99 with two.

    Args:
        hop_ns: Round trip of an empty message between server and worker, nanoseconds.
        service_ns: Service time of a full batch, nanoseconds; 0 means unknown.

    Returns:
        1 + ceil(hop / service), 2 to 3.
    """
    if service_ns <= 0:
        return MIN_DEPTH
    return min(MAX_DEPTH, max(MIN_DEPTH, 1 + -(-hop_ns // service_ns)))
