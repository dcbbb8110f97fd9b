"""A stage without a process, for tests: a worker's loop behind the server's link, stepped where it is called."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from trioserve.execution._link import StageLink
from trioserve.execution._load import executor_bounds
from trioserve.execution._loop import DataLoop
from trioserve.execution._orders import Orders
from trioserve.execution._runner import ModelRunner
from trioserve.memory import Slab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve.backends import Backend
    from trioserve.execution._descriptors import StageBatch, StageResult
    from trioserve.execution._spec import WorkerModel


class InProcessStage:
    """Runs batches synchronously in the calling thread, behind the interface of `StageLink`.

    Tests only: a server that did this would not answer anybody while a model runs.

    A batch runs when it is sent, or, with `manual=True`, when the test calls `run_next`: a worker that is busy
    for as long as the test wants. Descriptors go through a real socket pair, so whatever holds for a worker's
    messages holds here.
    """

    def __init__(
        self,
        models: Sequence[WorkerModel],
        backends: Sequence[Backend],
        *,
        depth: int = 1,
        manual: bool = False,
    ) -> None:
        """Serve loaded backends.

        Args:
            models: As in a `WorkerSpec`.
            backends: One a model, loaded. No warm-up is made.
            depth: Batches that may be unfinished at a time.
            manual: Whether batches wait for `run_next`.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        theirs.settimeout(0)
        self._peer = theirs
        self._manual = manual
        self._link = StageLink(ours, epoch=1, depth=depth)
        runners = [
            ModelRunner(model.config, backend, Slab(model.arena, model.layout))
            for model, backend in zip(models, backends, strict=True)
        ]
        bounds = [executor_bounds(model.config, model.layout) for model in models]
        self._orders = Orders()
        self._loop = DataLoop(theirs, epoch=1, runners=runners, bounds=bounds, orders=self._orders)

    @property
    def depth(self) -> int:
        """See `StageLink`."""
        return self._link.depth

    @property
    def in_flight(self) -> int:
        """See `StageLink`."""
        return self._link.in_flight

    @property
    def is_sound(self) -> bool:
        """See `StageLink`."""
        return self._link.is_sound

    def fileno(self) -> int:
        """See `StageLink`."""
        return self._link.fileno()

    def send_nowait(self, batch: StageBatch) -> None:
        """See `StageLink`."""
        self._link.send_nowait(batch)
        if not self._manual:
            self._loop.step()

    def abandon(self, seq: int) -> None:
        """See `StageLink`. May be called by a backend that runs, as by another thread."""
        self._orders.abandon(seq)

    def kill(self, why: str) -> None:
        """See `StageLink`."""
        del why
        self.die()

    def run_next(self) -> None:
        """Run the oldest batch that waits.

        Raises:
            BlockingIOError: None waits.
        """
        self._loop.step()

    def receive_nowait(self) -> StageResult | None:
        """See `StageLink`."""
        return self._link.receive_nowait()

    def die(self) -> None:
        """End as a killed worker does: what is in flight never comes back."""
        self._peer.close()

    def close(self) -> None:
        """See `StageLink`."""
        self._link.close()
        self._peer.close()
