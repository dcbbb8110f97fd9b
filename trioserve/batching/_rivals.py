"""How other servers cut batches, as policies: for the same arrivals in the simulator, and beside the real one.

Each is the rule its documentation and source describe, in our words. All are treated kindly: none polls here, and none
binds a batch before an executor can take it unless that is its rule. None has an admission rule of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trioserve_protocol import CutReason

from ._policy import NEVER_NS, Dispatch, QueueView, WaitUntil


class Greedy:
    """Takes all that waits whenever an executor is free: text-embeddings-inference, and a window of 0."""

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        del now_ns
        rows = min(view.queued_rows, view.max_rows)
        return Dispatch(rows, CutReason.FULL if rows == view.max_rows else CutReason.NO_GAIN)


class WaitForRows:
    """Waits for so many rows, however long: a window that is never over, of which the mean latency is known exactly.

    Args:
        rows: how many.
    """

    def __init__(self, rows: int) -> None:
        self.rows: Final = rows

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        del now_ns
        if view.queued_rows < self.rows:
            return WaitUntil(NEVER_NS)
        return Dispatch(min(view.queued_rows, view.max_rows), CutReason.NO_GAIN)


class PreferredSizes:
    """Triton's dynamic batcher: a preferred size as soon as it is there, else all that waits when the delay is over.

    Args:
        delay_ns: the longest that a request is held for others (`max_queue_delay_microseconds`).
        sizes: preferred batch sizes; the largest batch if there are none.
    """

    def __init__(self, delay_ns: int, sizes: tuple[int, ...] = ()) -> None:
        self.delay_ns: Final = delay_ns
        self.sizes: Final = tuple(sorted(sizes, reverse=True))

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        for size in self.sizes or (view.max_rows,):
            if size <= view.queued_rows:
                return Dispatch(min(size, view.max_rows), CutReason.FULL)
        end_ns = view.oldest_ready_ns + self.delay_ns
        if now_ns < end_ns:
            return WaitUntil(end_ns)
        return Dispatch(min(view.queued_rows, view.max_rows), CutReason.WINDOW)


class JustInTime(Greedy):
    """TensorFlow's scheduler for a serial device: greedy, with so many batches at the device that it never runs dry.

    Args:
        depth: batches at the device, the running one included; it aims at two that wait.
    """

    def __init__(self, depth: int = 3) -> None:
        self.depth: Final = depth


class Cork:
    """BentoML's adaptive batcher: holds a batch as long as usual, by a line that it fits to its last batches.

    It waits while `rows * (gap + tick + cost of a row)` is below the usual wait, and gives up heads that the batch
    would make late.

    Args:
        max_latency_ns: what a request may take (`max_latency_ms`).
    """

    TICK_NS: Final = 1_000_000
    DECAY: Final = 0.95
    KEPT: Final = 50
    REFRESH: Final = 5

    def __init__(self, max_latency_ns: int) -> None:
        self.max_latency_ns: Final = max_latency_ns
        self._seen: Final[deque[tuple[int, int, int]]] = deque(maxlen=self.KEPT)
        self._batches = 0
        self._fixed_ns, self._row_ns = 2e6, 1e6
        self._wait_ns = 10e6
        self._gap_ns = 0

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        queued = view.queued_rows
        age_ns = now_ns - view.oldest_ready_ns
        if queued > 1 and age_ns + self._row_ns * queued + self._fixed_ns >= self.max_latency_ns:
            return Dispatch(0, CutReason.SLACK, drop=1)
        gap_ns = age_ns // queued
        if queued < view.max_rows and (
            queued * (gap_ns + self.TICK_NS + self._row_ns) <= self._wait_ns * self.DECAY
        ):
            return WaitUntil(now_ns + self.TICK_NS)
        self._gap_ns = gap_ns
        return Dispatch(min(queued, view.max_rows), CutReason.WINDOW)

    def learn(self, rows: int, run_ns: int) -> None:
        """See `Learner.learn`."""
        self._seen.append((rows, run_ns, self._gap_ns))
        self._batches += 1
        if self._batches % self.REFRESH:
            return
        count = len(self._seen)
        mean_rows = sum(rows for rows, _, _ in self._seen) / count
        mean_ns = sum(run_ns for _, run_ns, _ in self._seen) / count
        spread = sum((rows - mean_rows) ** 2 for rows, _, _ in self._seen)
        slope = sum((rows - mean_rows) * (run_ns - mean_ns) for rows, run_ns, _ in self._seen)
        self._row_ns = max(1_000.0, slope / spread if spread else 0.0)
        self._fixed_ns = max(0.0, mean_ns - self._row_ns * mean_rows)
        self._wait_ns = sum(gap_ns for _, _, gap_ns in self._seen) / count


class AdditiveIncrease:
    """Clipper: greedy, with a largest batch that grows by steps and shrinks by a tenth when one takes too long.

    Args:
        objective_ns: what a batch may take.
        step: rows by which the largest batch grows.
    """

    def __init__(self, objective_ns: int, step: int = 2) -> None:
        self.objective_ns: Final = objective_ns
        self.step: Final = step
        self.rows = 1.0

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        del now_ns
        return Dispatch(min(view.queued_rows, view.max_rows, int(self.rows)), CutReason.NO_GAIN)

    def learn(self, rows: int, run_ns: int) -> None:
        """See `Learner.learn`."""
        if run_ns > self.objective_ns:
            self.rows = max(1.0, 0.9 * self.rows)
        elif rows >= int(self.rows):
            self.rows += self.step
