"""Batches that nobody waits for any more: the server says so on the control pair, and a worker ends them early.

A batch that runs is interrupted, one that is still queued is skipped. The order and the end of the batch may cross, so
both sides of it take one lock, and an order counts only for the batch that it names: it never hits the next one.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from trioserve.execution._descriptors import StageResult
from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from trioserve.execution._descriptors import StageBatch

MAX_WAITING: Final = 64
"""Orders for queued batches that are remembered; a sound server has at most three batches with a worker."""


class Interruptible(Protocol):
    """What runs a batch, as another thread sees it."""

    def interrupt(self) -> None:
        """End the batch that runs, soon, if that is possible. Called while one runs, from another thread."""

    def resume(self) -> None:
        """The interrupted batch has ended: forget the interruption."""


class Orders:
    """The orders of one worker. `abandon` belongs to the control thread, the rest to the thread that runs batches."""

    def __init__(self) -> None:
        """No orders yet."""
        self._lock = threading.Lock()
        self._waiting: set[int] = set()
        self._taken = -1
        self._running: Interruptible | None = None
        self._interrupted = False

    def abandon(self, seq: int) -> bool:
        """Nobody waits for a batch any more.

        Args:
            seq: Its number. One that has ended is ignored.

        Returns:
            Whether it was not begun yet, and now never will be.
        """
        with self._lock:
            if seq > self._taken:
                if len(self._waiting) < MAX_WAITING:
                    self._waiting.add(seq)
                    return True
            elif seq == self._taken and self._running is not None and not self._interrupted:
                self._interrupted = True
                self._running.interrupt()
        return False

    def begin(self, seq: int, runner: Interruptible) -> bool:
        """A batch was taken up.

        Args:
            seq: Its number.
            runner: Runs it.

        Returns:
            Whether it is to be run; then `end` must follow.
        """
        with self._lock:
            self._taken = seq
            if self._waiting and seq in self._waiting:
                self._waiting.discard(seq)
                return False
            self._running = runner
        return True

    def end(self) -> None:
        """The batch has ended: no order reaches it any more."""
        with self._lock:
            runner, self._running = self._running, None
            if self._interrupted and runner is not None:
                self._interrupted = False
                runner.resume()


def abandoned(batch: StageBatch, started_ns: int) -> StageResult:
    """The result of a batch that was ended early or not run at all, because nobody waited for it any more.

    Its code keeps what it took from being learnt from.
    """
    now_ns = time.monotonic_ns()
    return StageResult(
        batch.model, batch.seq, int(ErrorCode.CANCELLED), "", started_ns, started_ns, now_ns, now_ns, 0, 0
    )
