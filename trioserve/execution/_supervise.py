"""Keeping one worker alive: started, handed over, missed when it dies, started again, stopped with grace."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trioserve.execution._ready import Ending, ReadyWorker, start_worker
from trioserve.execution._spec import ReadyInfo, WorkerLoss, WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trioserve.execution._link import StageLink
    from trioserve.execution._spec import WorkerSpec

logger = structlog.get_logger(__name__)

MAX_BACKOFF_S: Final = 10.0
"""Longest that the pause before a restart grows to, seconds."""


async def supervise_worker(
    spec: WorkerSpec,
    *,
    on_ready: Callable[[StageLink, ReadyInfo], None],
    on_lost: Callable[[WorkerLoss], None],
    task_status: trio.TaskStatus[ReadyInfo] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a worker until cancelled. For `nursery.start`, which returns when the worker serves for the first time.

    Args:
        spec: The worker.
        on_ready: Called with a link of its own for each start. Who receives the link closes it.
        on_lost: Called when a worker that had been ready is gone and reaped: what was in flight on its link comes
            back no more, and its slots can be used again. The link itself reports the end earlier, as WorkerLost.
        task_status: Started with what the first worker turned out to be.

    Raises:
        WorkerStartError: The first start failed. Later ones are reported by `on_lost`.

    Cancellation:
        The worker finishes what it holds, at most `spec.grace_s`, and is then killed; it is reaped when this returns.
    """

    def announce(link: StageLink, info: ReadyInfo) -> None:
        on_ready(link, info)
        if info.epoch == 1:
            task_status.started(info)

    deaths_s: deque[float] = deque()
    for epoch in count(1):
        try:
            worker = await start_worker(spec, epoch)
        except WorkerStartError as error:
            if epoch == 1:
                raise
            ending = Ending(str(error), killed=False)
        else:
            ending = await _serve(worker, spec.grace_s, announce)
        now_s = trio.current_time()
        while deaths_s and now_s - deaths_s[0] >= spec.restart_window_s:
            deaths_s.popleft()
        deaths_s.append(now_s)
        restarting = len(deaths_s) <= spec.max_restarts
        logger.error("worker_lost", kind=spec.kind, epoch=epoch, reason=ending.reason, restarting=restarting)
        on_lost(WorkerLoss(ending.reason, epoch, restarting, ending.killed))
        if not restarting:
            await trio.sleep_forever()
        await trio.sleep(backoff_s(spec, len(deaths_s)))


def backoff_s(spec: WorkerSpec, deaths: int) -> float:
    """Pause before the restart after so many deaths, seconds."""
    first_s = spec.restart_backoff_s
    return min(first_s * 2.0 ** min(deaths - 1, 32), max(first_s, MAX_BACKOFF_S))


async def _serve(
    worker: ReadyWorker, grace_s: float, on_ready: Callable[[StageLink, ReadyInfo], None]
) -> Ending:
    """Hand a worker over, and wait for its end."""
    try:
        on_ready(worker.link, worker.info)
        await worker.ending()
        return await worker.reaped()
    finally:
        await worker.stop(grace_s)  # noqa: ASYNC102 - is shielded, and bounded
