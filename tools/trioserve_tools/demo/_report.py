"""What the demo prints: pure functions from figures to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trioserve_protocol import CutReason, Timing

WIDTH = 78
"""Columns of a terminal, less two for its edge."""

_BAR_WIDTH = 40

_PHASES = (
    ("parsed", "parsed_ns"),
    ("tokenized", "tokenized_ns"),
    ("ready", "ready_ns"),
    ("waited for its batch", "batched_ns"),
    ("input laid out", "input_copied_ns"),
    ("model ran", "run_ns"),
    ("output stored", "output_copied_ns"),
    ("reply written", "sent_ns"),
)
"""The phases of a request in order, each ended by a field of `Timing`."""


class Load(NamedTuple):
    """One way of sending requests and what came of it."""

    name: str
    latencies_ns: npt.NDArray[np.int64]
    """i64[requests]: from the call to the result, nanoseconds."""

    elapsed_ns: int
    """From the first call to the last result."""


def heading(text: str) -> str:
    """A line with a rule below it."""
    return f"{text}\n{'-' * len(text)}"


def nearest(
    question: str, scores: npt.NDArray[np.float32], stored: Sequence[tuple[str, str]], *, count: int = 3
) -> str:
    """A question and the stored ones most like it.

    Args:
        question: What was asked.
        scores: f32[n], its cosine with each stored question.
        stored: Text and topic of each stored question.
        count: How many to show.
    """
    lines = [question]
    for index in np.argsort(-scores, kind="stable")[:count]:
        text, topic = stored[index]
        lines.append(f"  {scores[index]:5.2f}  {shortened(text, WIDTH - 28):<{WIDTH - 28}}  {topic}")
    return "\n".join(lines)


def shortened(text: str, width: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def waterfall(timing: Timing) -> str:
    """The phases of one request as bars over time. A phase that did not happen has no line.

    Args:
        timing: What the server said in the reply.
    """
    total = max(timing.sent_ns - timing.received_ns, 1)
    lines = [f"{'':24}{'µs':>9}  0 {'µs':<{_BAR_WIDTH - 10}}{total / 1e3:>8.0f}"]
    start = timing.received_ns
    for name, field in _PHASES:
        end = getattr(timing, field)
        if end:
            first, last = ((at - timing.received_ns) * _BAR_WIDTH // total for at in (start, end))
            bar = " " * first + "█" * max(last - first, 1)
            lines.append(
                f"  {name:<22}{(end - start) / 1e3:>9.0f}  {bar[:_BAR_WIDTH]:<{_BAR_WIDTH}}".rstrip()
            )
            start = end
    lines.append(_batch_line(timing))
    return "\n".join(lines)


def _batch_line(timing: Timing) -> str:
    known = {int(reason): reason.name.lower().replace("_", " ") for reason in CutReason}
    rows = "1 row" if timing.batch_rows == 1 else f"{timing.batch_rows} rows"
    line = f"  batch {timing.batch_id} of {rows}, cut: {known.get(timing.cut_reason, timing.cut_reason)}"
    if not timing.predicted_finish_ns:
        return line
    late_us = (timing.finished_ns - timing.predicted_finish_ns) / 1e3
    return f"{line}, done {abs(late_us):,.0f} µs {'after' if late_us > 0 else 'before'} the forecast"


def latency_table(loads: Sequence[Load]) -> str:
    """Throughput and latency of several loads, a line each."""
    lines = [f"  {'':<36}{'requests/s':>12}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}"]
    for load in loads:
        rate = len(load.latencies_ns) / (load.elapsed_ns / 1e9)
        percentiles = np.percentile(load.latencies_ns, [50, 90, 99]) / 1e6
        lines.append(f"  {load.name:<36}{rate:>12,.0f}" + "".join(f"{value:>10.1f}" for value in percentiles))
    return "\n".join(lines)
