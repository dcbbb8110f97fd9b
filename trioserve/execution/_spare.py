"""A second worker of a stage: loaded, warm and idle, until it takes the place of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from trioserve.execution._ready import ReadyWorker, start_worker
from trioserve.execution._restarts import backoff_s
from trioserve.execution._spec import WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trioserve.execution._spec import WorkerSpec

logger = structlog.get_logger(__name__)

AFTER_S: Final = 1.0
"""How long the worker that has taken over has the machine to itself before the next spare is loaded, seconds."""


class Spare:
    """Keeps a spare while one is wanted.

    Args:
        spec: What it is to be.
        epochs: Numbers that no other worker of the stage has.
        on_change: Told its process id, 0 when there is none.
    """

    def __init__(self, spec: WorkerSpec, epochs: Iterator[int], on_change: Callable[[int], None]) -> None:
        self._spec: Final = spec
        self._epochs: Final = epochs
        self._on_change: Final = on_change
        self._worker: ReadyWorker | None = None
        self._wanted = trio.Event()
        self._started: trio.Event | None = None
        """Set when the start that is under way has ended."""
        self._idle = trio.CancelScope()

    def want(self) -> None:
        """There should be one."""
        self._wanted.set()

    async def take(self) -> ReadyWorker | None:
        """The spare, waited for if it is being started. It belongs to the caller then; None if there is none."""
        if self._started is not None:
            await self._started.wait()
        return self.take_nowait()

    def take_nowait(self) -> ReadyWorker | None:
        """The spare if it is ready."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._on_change(0)
            self._idle.cancel()
        return worker

    async def keep(self) -> None:
        """Start one whenever it is wanted, and again later each time if it fails.

        Cancellation:
            A spare that nobody has taken is killed and reaped.
        """
        failures = 0
        pause_s = 0.0
        while True:
            await self._wanted.wait()
            await trio.sleep(pause_s)
            self._wanted = trio.Event()
            reason = await self._hold()
            failures = failures + 1 if reason else 0
            pause_s = AFTER_S
            if reason:
                pause_s = max(AFTER_S, backoff_s(self._spec, failures))
                logger.error("spare_lost", kind=self._spec.kind, reason=reason, again_s=pause_s)
                self._wanted.set()

    async def _hold(self) -> str:
        """Start one and keep it until it is taken; or say why it is gone."""
        self._started = trio.Event()
        try:
            worker = await start_worker(self._spec, next(self._epochs))
            self._worker = worker
        except WorkerStartError as error:
            return str(error)
        finally:
            self._started.set()
            self._started = None
        self._on_change(worker.info.pid)
        try:
            with trio.CancelScope() as self._idle:
                await worker.ending()
                return (await worker.reaped()).reason
            return ""
        finally:
            if self._worker is worker:
                self._worker = None
                self._on_change(0)
                await worker.discard()  # noqa: ASYNC102 - is shielded, and bounded
