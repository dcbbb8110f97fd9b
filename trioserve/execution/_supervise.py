"""Keeping one worker alive: started, handed over, missed when it dies, started again, stopped with grace."""

from __future__ import annotations

import signal
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trioserve.execution._costs import choose_depth
from trioserve.execution._link import StageLink
from trioserve.execution._process import REAP_LIMIT_S, start_process
from trioserve.execution._spec import ReadyInfo, WorkerLoss, WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trioserve.execution._messages import ModelReady
    from trioserve.execution._process import WorkerProcess
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
        killed = False
        try:
            reason, killed = await _run_once(spec, epoch, announce)
        except WorkerStartError as error:
            if epoch == 1:
                raise
            reason = str(error)
        now_s = trio.current_time()
        while deaths_s and now_s - deaths_s[0] >= spec.restart_window_s:
            deaths_s.popleft()
        deaths_s.append(now_s)
        restarting = len(deaths_s) <= spec.max_restarts
        logger.error("worker_lost", kind=spec.kind, epoch=epoch, reason=reason, restarting=restarting)
        on_lost(WorkerLoss(reason, epoch, restarting, killed))
        if not restarting:
            await trio.sleep_forever()
        await trio.sleep(backoff_s(spec, len(deaths_s)))


def backoff_s(spec: WorkerSpec, deaths: int) -> float:
    """Pause before the restart after so many deaths, seconds."""
    first_s = spec.restart_backoff_s
    return min(first_s * 2.0 ** min(deaths - 1, 32), max(first_s, MAX_BACKOFF_S))


async def _run_once(
    spec: WorkerSpec, epoch: int, on_ready: Callable[[StageLink, ReadyInfo], None]
) -> tuple[str, bool]:
    """Start a worker, hand it over, and wait for its end.

    Returns:
        How it ended, and whether that was by SIGKILL.

    Raises:
        WorkerStartError: It did not become ready.
    """
    worker = await start_process(spec, epoch)
    try:
        info = await _ready_info(spec, worker)
    except BaseException:
        worker.data.close()
        with trio.move_on_after(REAP_LIMIT_S, shield=True):
            await worker.stop(0)
        raise
    try:
        logger.info(
            "worker_ready", kind=spec.kind, pid=info.pid, epoch=epoch, hop_ns=info.hop_ns, depth=info.depth
        )
        link = StageLink(worker.data, epoch=epoch, depth=info.depth, control=worker.orders)
        worker.on_skipped = link.skipped
        on_ready(link, info)
        reason = await worker.gone()
        return reason, worker.process.returncode == -signal.SIGKILL
    finally:
        with trio.move_on_after(spec.grace_s + REAP_LIMIT_S, shield=True):
            await worker.stop(spec.grace_s)


async def _ready_info(spec: WorkerSpec, worker: WorkerProcess) -> ReadyInfo:
    models = await worker.ready(spec.start_timeout_s)
    hop_ns = await worker.measure_hop()
    depth = spec.depth or choose_depth(hop_ns, _service_ns(models))
    return ReadyInfo(worker.epoch, worker.process.pid, hop_ns, depth, models)


def _service_ns(models: tuple[ModelReady, ...]) -> int:
    """Service time of a full batch of the fastest model, 0 if unknown: the hop weighs most against that one."""
    return min((model.warmup_ns[max(model.warmup_ns)] for model in models if model.warmup_ns), default=0)
