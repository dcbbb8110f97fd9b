"""Keeping one worker alive: started, handed over, missed when it dies, replaced, stopped with grace."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trioserve.execution._process import REAP_LIMIT_S
from trioserve.execution._ready import ReadyWorker, start_worker
from trioserve.execution._restarts import Pause, Restarts
from trioserve.execution._spare import Spare
from trioserve.execution._spec import ReadyInfo, WorkerLoss, WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trioserve.execution._link import StageLink
    from trioserve.execution._spec import WorkerSpec

logger = structlog.get_logger(__name__)


def _no_spare(_pid: int) -> None:
    """Nobody wants to know."""


async def supervise_worker(
    spec: WorkerSpec,
    *,
    on_ready: Callable[[StageLink, ReadyInfo], None],
    on_lost: Callable[[WorkerLoss], None],
    on_spare: Callable[[int], None] = _no_spare,
    task_status: trio.TaskStatus[ReadyInfo] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a worker until cancelled. For `nursery.start`, which returns when the worker serves for the first time.

    Args:
        spec: The worker.
        on_ready: Called with a link of its own for each start. Who receives the link closes it. A spare takes over
            before `on_lost` is called for its predecessor.
        on_lost: Called when a worker that had been ready is gone and reaped: what was in flight on its link comes
            back no more, and its slots can be used again. The link itself reports the end earlier, as WorkerLost. Also
            called when a start fails.
        on_spare: Called with the process id of a spare that has become ready, and with 0 when there is none any more.
        task_status: Started with what the first worker turned out to be.

    Raises:
        WorkerStartError: The first start failed. Later ones are reported by `on_lost`.

    Cancellation:
        The worker finishes what it holds, at most `spec.grace_s`, and is then killed; it is reaped when this returns.
    """
    epochs = count(1)
    first = await start_worker(spec, next(epochs))
    spare = Spare(spec, epochs, on_spare)
    supervisor = _Supervisor(spec, epochs, spare, on_ready, on_lost)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spare.keep)
        await supervisor.run(first, nursery, task_status)


class _Supervisor:
    """Replaces one worker by the next."""

    def __init__(
        self,
        spec: WorkerSpec,
        epochs: count[int],
        spare: Spare,
        on_ready: Callable[[StageLink, ReadyInfo], None],
        on_lost: Callable[[WorkerLoss], None],
    ) -> None:
        self._spec: Final = spec
        self._epochs: Final = epochs
        self._spare: Final = spare
        self._on_ready: Final = on_ready
        self._on_lost: Final = on_lost
        self._restarts: Final = Restarts(spec, random.random)

    async def run(
        self, worker: ReadyWorker, nursery: trio.Nursery, task_status: trio.TaskStatus[ReadyInfo]
    ) -> None:
        """Hand a worker over, and after its end another one, and so on."""
        while True:  # noqa: ASYNC913 - waits for the end of a worker
            try:
                self._on_ready(worker.link, worker.info)
                if worker.info.epoch == 1:
                    task_status.started(worker.info)
                self._restarts.ready(trio.current_time())
                if self._spec.spare and not self._restarts.is_broken:
                    self._spare.want()
                await worker.ending()
            except BaseException:
                await worker.stop(self._spec.grace_s)  # noqa: ASYNC102 - is shielded, and bounded
                raise
            pause = self._restarts.died(trio.current_time())
            buried = trio.Event()
            nursery.start_soon(self._bury, worker, pause, buried)
            successor = None if pause.is_broken else self._spare.take_nowait()
            if successor is None:
                # One that is stuck in the kernel does not keep its stage closed; its slots it does.
                with trio.move_on_after(REAP_LIMIT_S):
                    await buried.wait()
                successor = await self._next(pause)
            worker = successor

    async def _bury(self, worker: ReadyWorker, pause: Pause, buried: trio.Event) -> None:
        """Reap a worker that serves no more."""
        try:
            ending = await worker.reaped()
        finally:
            await worker.stop(0)  # noqa: ASYNC102 - is shielded, and bounded
        self._lost(ending.reason, worker.info.epoch, pause, killed=ending.killed)
        buried.set()

    def _lost(self, reason: str, epoch: int, pause: Pause, *, killed: bool = False) -> None:
        restarting = not pause.is_broken
        logger.error(
            "worker_lost",
            kind=self._spec.kind,
            epoch=epoch,
            reason=reason,
            restarting=restarting,
            again_s=round(pause.seconds, 3),
        )
        self._on_lost(WorkerLoss(reason, epoch, restarting, killed, pause.seconds))

    async def _next(self, pause: Pause) -> ReadyWorker:
        """The next worker: the spare, or one that is started after a pause."""
        while True:
            if not pause.is_broken and (spare := await self._spare.take()):
                return spare
            await trio.sleep(pause.seconds)
            epoch = next(self._epochs)
            try:
                return await self._spare.take() or await start_worker(self._spec, epoch)
            except WorkerStartError as error:
                pause = self._restarts.died(trio.current_time())
                self._lost(str(error), epoch, pause)
