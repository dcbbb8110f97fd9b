"""Warm-up: the usual batch sizes run once before a model is ready.

So the first request does not pay for allocation, compilation and page faults, and what a batch costs, and how surely,
is known before the first decision about one.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trioserve.backends import check_outputs
from trioserve.execution._costs import Costs, call_cost_ns
from trioserve.execution._descriptors import StageBatch
from trioserve.execution._rows import TokenRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trioserve.backends import Arrays, Backend
    from trioserve.config import ModelConfig
    from trioserve.execution._rows import Staging

REPEATS: Final = 7
"""Calls timed a size, at most; the median counts."""

SIZE_BUDGET_NS: Final = 30_000_000
"""Time for the timed calls of one size; at least one is made."""

TEXT_LIMIT_NS: Final = 2_000_000_000
"""Time after which a text model is warmed up with no batch of more than `TEXT_TOKENS` tokens any more. What a larger
one takes is then the line through the last two."""

PRIOR_SHARE: Final = 0.07
"""Deviation that is assumed of a size before its first call, as a share of its service time; it counts like one call,
so that a size which was timed once does not pass for one that never varies."""

OUTLIER: Final = 2.0
"""A call counts for at most this multiple of the median: a stall of the machine says nothing about the model."""

TEXT_TOKENS: Final = 512
"""Tokens of the largest batch that a text model without a token budget is warmed up with."""

SHORTEST_TOKENS: Final = 8
"""Length of the shortest text that one is warmed up with: a question of five words."""


class Took(NamedTuple):
    """What some calls of one size took."""

    centre_ns: int
    """Their median, nanoseconds."""

    deviation_ns: int
    """Their mean absolute deviation from it, nanoseconds."""


class ServiceTimes(NamedTuple):
    """Service times by units of a batch: rows, or tokens of a text model, padding included."""

    warmup_ns: dict[int, int]
    """The usual one, nanoseconds."""

    deviation_ns: dict[int, int]
    """How far a call is from it on average, nanoseconds."""

    def add(self, units: int, took: Took) -> None:
        """Note what one size took. Of two shapes of as many units the slower one is what may be counted on."""
        if took.centre_ns >= self.warmup_ns.get(units, 0):
            self.warmup_ns[units], self.deviation_ns[units] = took


NOTHING_TIMED: Final = ServiceTimes({}, {})


def row_sizes(max_rows: int) -> list[int]:
    """Batch sizes that are warmed up: powers of two, and the largest batch."""
    sizes = [1 << bit for bit in range(max_rows.bit_length()) if 1 << bit < max_rows]
    return [*sizes, max_rows]


def text_sizes(config: ModelConfig, max_tokens: int) -> list[tuple[int, int]]:
    """(rows, tokens a row) that a text model is warmed up with.

    The lengths are those of the buckets, and between them those that double from the shortest; each is run alone, and
    in as many rows as make a full batch. A model without a token budget is run in batches of `TEXT_TOKENS` besides.
    """
    budget, max_rows = config.batching.max_tokens, config.batching.max_rows
    buckets = [min(bucket, max_tokens) for bucket in config.batching.buckets] or [max_tokens]
    longest = max(buckets)
    doubled = [SHORTEST_TOKENS << step for step in range(longest.bit_length())]
    lengths = {*buckets, *[length for length in doubled if length < longest]}
    sizes = {(1, length) for length in lengths}
    for tokens in (budget,) if budget else (TEXT_TOKENS, max_rows * longest):
        sizes |= {(min(max_rows, max(1, tokens // length)), length) for length in lengths}
    return sorted(sizes, key=lambda size: (size[0] * size[1], size))


def warm_up_rows(
    config: ModelConfig, backend: Backend, staging: Staging, names: tuple[str, ...]
) -> ServiceTimes:
    """Warm a fixed-shape model up with rows of zeros.

    Returns:
        By rows.

    Raises:
        Exception: The model raised, or returned something else than its signature says.
    """
    times = ServiceTimes({}, {})
    for rows in row_sizes(config.batching.max_rows):
        inputs = tuple(array[:rows] for array in staging.inputs)
        places = tuple(array[:rows] for array in staging.outputs)
        times.add(rows, time_call(partial(_call, backend, names, inputs, places)))
    return times


def warm_up_text(
    config: ModelConfig, backend: Backend, staging: Staging, names: tuple[str, ...], max_tokens: int
) -> ServiceTimes:
    """Warm a text model up with rows of one token id repeated.

    Returns:
        By tokens of the batch, padding included.

    Raises:
        Exception: As for `warm_up_rows`.
    """
    times = ServiceTimes({}, {})
    began_ns = time.monotonic_ns()
    for rows, length in text_sizes(config, max_tokens):
        if rows * length > TEXT_TOKENS and time.monotonic_ns() - began_ns > TEXT_LIMIT_NS:
            break
        tokens = np.ones((rows, length), np.uint32)
        batch = StageBatch(0, 0, ((0, rows),), np.full(rows, length, np.uint32))
        laid_out = TokenRows(tokens, batch, config.batching.layout).inputs(0, rows)
        places = tuple(array[:rows] for array in staging.outputs)
        times.add(rows * length, time_call(partial(_call, backend, names, laid_out, places)))
    return times


def measure_costs(service_ns: dict[int, int], staging: Staging) -> Costs:
    """What gathering is decided by: the fixed cost of a call, and the copy rate of this machine."""
    return Costs(call_cost_ns(service_ns), _copy_ns_per_byte(staging))


def _copy_ns_per_byte(staging: Staging) -> float:
    arrays = [array for array in (*staging.inputs, *staging.outputs) if array.nbytes]
    nbytes: int = sum(array.nbytes for array in arrays)
    if not nbytes:
        return 0.0
    targets = [np.empty_like(array) for array in arrays]

    def copy() -> None:
        for source, target in zip(arrays, targets, strict=True):
            target[...] = source

    return time_call(copy).centre_ns / nbytes


def _call(backend: Backend, names: tuple[str, ...], inputs: Arrays, places: Arrays) -> None:
    check_outputs(names, backend.infer(inputs, places), places)


def time_call(call: Callable[[], object]) -> Took:
    """What a call takes, after one that is not counted."""
    call()
    return summary(list(_times(call)))


def summary(times_ns: list[int]) -> Took:
    """Median and mean absolute deviation of some calls, at least one."""
    centre = statistics.median(times_ns)
    apart = [abs(min(time_ns, OUTLIER * centre) - centre) for time_ns in times_ns]
    return Took(int(centre), int(statistics.fmean([*apart, PRIOR_SHARE * centre])))


def _times(call: Callable[[], object]) -> Iterator[int]:
    began = time.monotonic_ns()
    for _ in range(REPEATS):
        before = time.monotonic_ns()
        call()
        after = time.monotonic_ns()
        yield after - before
        if after - began > SIZE_BUDGET_NS:
            return
