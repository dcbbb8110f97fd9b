"""A worker without a process: it takes the time it is told to take, on the clock of a `MemoryNetwork`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from trioserve.errors import WorkerLost
from trioserve.execution import StageBatch, StageResult
from trioserve.request import NEVER_NS
from trioserve.testing._memory_network import MemoryNetwork
from trioserve.transport import READABLE

if TYPE_CHECKING:
    from trioserve.backends import Arrays
    from trioserve.memory import Slab


class MemoryWorker:
    """An executor behind the interface of `StageLink`.

    Args:
        network: gives it a descriptor number and time.
        slabs: one a model.
        infer: computes the outputs of a batch from its inputs, row by row.
        service_ns: how long a batch of so many rows takes.
        depth: batches that may be unfinished at a time.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        slabs: Sequence[Slab],
        *,
        infer: Callable[[Arrays], Arrays],
        service_ns: Callable[[int], int],
        depth: int = 1,
    ) -> None:
        self.depth = depth
        self.is_sound = True
        self._network: Final = network
        self._slabs: Final = slabs
        self._infer: Final = infer
        self._service_ns: Final = service_ns
        self._batches: deque[tuple[StageBatch, int, int]] = deque()
        self._fd = network.open(self)
        self._dead = False

    def fileno(self) -> int:
        """See `StageLink.fileno`."""
        return self._fd

    @property
    def in_flight(self) -> int:
        """See `StageLink.in_flight`."""
        return len(self._batches)

    def events(self) -> int:
        """See `Source.events`."""
        return READABLE if self._dead or self._network.clock.now_ns() >= self.due_ns() else 0

    def due_ns(self) -> int:
        """See `Source.due_ns`."""
        return self._batches[0][2] if self._batches else NEVER_NS

    def send_nowait(self, batch: StageBatch) -> None:
        """See `StageLink.send_nowait`."""
        if self._dead:
            raise WorkerLost("the worker is gone")
        if len(self._batches) >= self.depth:
            raise trio.WouldBlock
        start_ns = self._network.clock.now_ns()
        if self._batches:
            start_ns = max(start_ns, self._batches[-1][2])
        self._batches.append((batch, start_ns, start_ns + self._service_ns(batch.rows)))
        self._network.changed()

    def abandon(self, seq: int) -> None:
        """See `StageLink.abandon`; nothing is interrupted here."""

    def receive_nowait(self) -> StageResult | None:
        """See `StageLink.receive_nowait`."""
        if self._dead:
            raise WorkerLost("the worker is gone")
        if self._network.clock.now_ns() < self.due_ns():
            return None
        batch, start_ns, end_ns = self._batches.popleft()
        slab = self._slabs[batch.model]
        rows = np.concatenate([np.arange(first, first + count) for first, count in batch.ranges])
        outputs = self._infer(tuple(tensor[rows] for tensor in slab.inputs))
        for tensor, values in zip(slab.outputs, outputs, strict=True):
            tensor[rows] = values
        return StageResult(batch.model, batch.seq, 0, "", start_ns, start_ns, end_ns, end_ns, 0, 0)

    def kill(self, why: str) -> None:
        """See `StageLink.kill`."""
        del why
        self.die()

    def die(self) -> None:
        """Ends as a killed process does: what is in flight never comes back."""
        self._dead = True
        self._network.changed()

    def close(self) -> None:
        """See `StageLink.close`."""
        if self._fd >= 0:
            self._network.free(self._fd)
            self._fd = -1
