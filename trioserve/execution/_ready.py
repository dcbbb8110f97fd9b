"""A worker that has loaded its models: the one that serves a stage, or one beside it that may take its place."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
import trio

from trioserve.execution._costs import choose_depth
from trioserve.execution._link import StageLink
from trioserve.execution._process import REAP_LIMIT_S, start_process
from trioserve.execution._spec import ReadyInfo

if TYPE_CHECKING:
    from trioserve.execution._messages import ModelReady
    from trioserve.execution._process import WorkerProcess
    from trioserve.execution._spec import WorkerSpec

logger = structlog.get_logger(__name__)


class Ending(NamedTuple):
    """How a worker ended."""

    reason: str
    """In words for the log."""

    killed: bool
    """Whether it was by a signal that did not come from here: SIGKILL, or one that had stopped it before."""


class ReadyWorker:
    """A worker process whose models are loaded and warm. It waits for batches, and costs no time while there are none.

    Args:
        process: Ready.
        info: What it turned out to be.

    Ownership:
        Whoever has it calls `stop` or `discard`. The link belongs to the stage that it is attached to, which closes it;
        what has no stage is ended by `discard`.
    """

    def __init__(self, process: WorkerProcess, info: ReadyInfo) -> None:
        self.info: Final = info
        self.link: Final = StageLink(
            process.data, epoch=info.epoch, depth=info.depth, control=process.orders, kill=process.kill
        )
        self._process: Final = process
        process.on_skipped = self.link.skipped

    async def ending(self) -> None:
        """Wait until it serves no more. It may still write to the rows that it has, until it is reaped."""
        await self._process.ending()

    async def reaped(self) -> Ending:
        """Wait, after its `ending`, until the process is gone: its rows can be used again."""
        reason = await self._process.reaped()
        if because := self._process.killed_because:
            stopped = self._process.was_stopped
            return Ending(f"killed: {because}" + (", stopped by a signal" if stopped else ""), stopped)
        return Ending(reason, self._process.process.returncode == -signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Let it finish what it has, for so long; then kill it. Idempotent, and not cancelled with its caller."""
        with trio.move_on_after(grace_s + REAP_LIMIT_S, shield=True):
            await self._process.stop(grace_s)

    async def discard(self) -> None:
        """End one that has never been attached to a stage. Idempotent, and not cancelled with its caller."""
        self.link.close()
        await self.stop(0)


async def start_worker(spec: WorkerSpec, epoch: int) -> ReadyWorker:
    """Start a worker and wait until its models are loaded and warm. Others of the same models may be there already.

    Args:
        spec: What it is to be.
        epoch: A number that no other worker of its stage has.

    Raises:
        WorkerStartError: It did not become ready.

    Cancellation:
        The process is killed and reaped.
    """
    process = await start_process(spec, epoch)
    try:
        models = await process.ready(spec.start_timeout_s)
        hop_ns = await process.measure_hop()
    except BaseException:
        process.data.close()
        with trio.move_on_after(REAP_LIMIT_S, shield=True):
            await process.stop(0)
        raise
    depth = spec.depth or choose_depth(hop_ns, _service_ns(models))
    info = ReadyInfo(epoch, process.process.pid, hop_ns, depth, models)
    logger.info("worker_ready", kind=spec.kind, pid=info.pid, epoch=epoch, hop_ns=hop_ns, depth=depth)
    return ReadyWorker(process, info)


def _service_ns(models: tuple[ModelReady, ...]) -> int:
    """Service time of a full batch of the fastest model, 0 if unknown: the hop weighs most against that one."""
    return min((model.warmup_ns[max(model.warmup_ns)] for model in models if model.warmup_ns), default=0)
