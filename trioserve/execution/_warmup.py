"""Warm-up: the usual batch sizes run once before a model is ready.

So the first request does not pay for allocation, compilation and page faults, and what a batch costs is known before
the first decision about one.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

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

TEXT_TOKENS: Final = 512
"""Tokens of the largest batch that a text model without a token budget is warmed up with."""

SHORTEST_TOKENS: Final = 8
"""Length of the shortest text that one is warmed up with: a question of five words."""


def row_sizes(max_rows: int) -> list[int]:
    """Batch sizes that are warmed up: powers of two, and the largest batch."""
    sizes = [1 << bit for bit in range(max_rows.bit_length()) if 1 << bit < max_rows]
    return [*sizes, max_rows]


def text_sizes(config: ModelConfig, max_tokens: int) -> list[tuple[int, int]]:
    """(rows, tokens a row) that a text model is warmed up with.

    Lengths double up to the longest bucket; each is run alone, and in as many rows as make a full batch.
    """
    budget = config.batching.max_tokens or TEXT_TOKENS
    longest = min(max(config.batching.buckets, default=max_tokens), max_tokens)
    doubled = [SHORTEST_TOKENS << step for step in range(longest.bit_length())]
    lengths = sorted({*[length for length in doubled if length < longest], longest})
    sizes = {(1, length) for length in lengths}
    sizes |= {(min(config.batching.max_rows, max(1, budget // length)), length) for length in lengths}
    return sorted(sizes, key=lambda size: (size[0] * size[1], size))


def warm_up_rows(
    config: ModelConfig, backend: Backend, staging: Staging, names: tuple[str, ...]
) -> dict[int, int]:
    """Warm a fixed-shape model up with rows of zeros.

    Returns:
        Service time in nanoseconds by rows.

    Raises:
        Exception: The model raised, or returned something else than its signature says.
    """
    service_ns = {}
    for rows in row_sizes(config.batching.max_rows):
        inputs = tuple(array[:rows] for array in staging.inputs)
        places = tuple(array[:rows] for array in staging.outputs)
        service_ns[rows] = _time(partial(_call, backend, names, inputs, places))
    return service_ns


def warm_up_text(
    config: ModelConfig, backend: Backend, staging: Staging, names: tuple[str, ...], max_tokens: int
) -> dict[int, int]:
    """Warm a text model up with rows of one token id repeated.

    Returns:
        Service time in nanoseconds by tokens of the batch, padding included.

    Raises:
        Exception: As for `warm_up_rows`.
    """
    service_ns: dict[int, int] = {}
    for rows, length in text_sizes(config, max_tokens):
        tokens = np.ones((rows, length), np.uint32)
        batch = StageBatch(0, 0, ((0, rows),), np.full(rows, length, np.uint32))
        laid_out = TokenRows(tokens, batch, config.batching.layout).inputs(0, rows)
        places = tuple(array[:rows] for array in staging.outputs)
        took = _time(partial(_call, backend, names, laid_out, places))
        # Two shapes of as many tokens: the slower one is what may be counted on.
        service_ns[rows * length] = max(took, service_ns.get(rows * length, 0))
    return service_ns


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

    return _time(copy) / nbytes


def _call(backend: Backend, names: tuple[str, ...], inputs: Arrays, places: Arrays) -> None:
    check_outputs(names, backend.infer(inputs, places), places)


def _time(call: Callable[[], None]) -> int:
    """Median time of a call in nanoseconds, after one that is not counted."""
    call()
    return int(statistics.median(_times(call)))


def _times(call: Callable[[], None]) -> Iterator[int]:
    began = time.monotonic_ns()
    for _ in range(REPEATS):
        before = time.monotonic_ns()
        call()
        after = time.monotonic_ns()
        yield after - before
        if after - began > SIZE_BUDGET_NS:
            return
