"""The bond between a worker process and the engine's stage for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from trioserve.backends import LoadError
from trioserve.batching import policy_named
from trioserve.engine import Executor
from trioserve.execution import supervise_worker
from trioserve.request import NEVER_NS

if TYPE_CHECKING:
    import trio

    from trioserve.engine import Tokenizer
    from trioserve.execution import ReadyInfo, StageLink, WorkerLoss, WorkerSpec
    from trioserve.transport import ConnectionGroup

    from ._learning import Learning

log = structlog.get_logger(__name__)

MAX_LEAD_NS: Final = 1_000_000
LEAD_SHARE: Final = 20


def lead_of(hop_ns: int, service_ns: int) -> int:
    """How long before a worker is expected to be free its next batch is sent, nanoseconds.

    A hop at least; for long batches a twentieth of their time, since neither their end nor the moment at which this
    process gets a processor is known better than that; never more than a millisecond, which rows that come later would
    have to wait out.

    Args:
        hop_ns: round trip of an empty message.
        service_ns: the longest run time seen at warm-up.
    """
    return max(hop_ns, min(MAX_LEAD_NS, service_ns // LEAD_SHARE))


class StageKeeper:
    """Attaches each start of a worker to its stage, and detaches it when the worker is lost.

    Args:
        stage: the engine's side.
        group: polls the worker's link.
        learning: seeds the service-time models, and is told when there may be something to save.
    """

    def __init__(self, stage: Executor | Tokenizer, group: ConnectionGroup, learning: Learning) -> None:
        self._stage: Final = stage
        self._learning: Final = learning
        self._group: Final = group
        self._links: Final[dict[int, StageLink]] = {}
        """By epoch: of the workers that are not reaped yet."""
        self._clock: Final = stage.lanes[0].clock
        stage.on_detach = group.unwatch_stage

    async def start(self, nursery: trio.Nursery, spec: WorkerSpec) -> None:
        """Starts the worker and returns when it serves.

        Args:
            nursery: supervises it for the rest of its life.
            spec: what it is.

        Raises:
            WorkerStartError: it did not become ready.
            LoadError: a model of it could not be loaded; all of them are named.
        """
        self._stage.health.kind = spec.kind

        async def supervise(  # noqa: ASYNC128 - `supervise_worker` reports the start
            *, task_status: trio.TaskStatus[ReadyInfo]
        ) -> None:
            try:
                await supervise_worker(
                    spec,
                    on_ready=self._on_ready,
                    on_lost=self._on_lost,
                    on_spare=self._on_spare,
                    task_status=task_status,
                )
            finally:
                self._stage.lose("the server stops")

        info: ReadyInfo = await nursery.start(supervise)
        # Most reasons name the model already.
        faults = [
            f"{model.name}: {model.error.removeprefix(f'{model.name}: ')}"
            for model in info.models
            if model.error
        ]
        if faults:
            raise LoadError("; ".join(faults))

    def _on_ready(self, link: StageLink, info: ReadyInfo) -> None:
        stage = self._stage
        self._links[info.epoch] = link
        # Nobody may have noticed yet that the last one is gone, or it has closed only one of its ends.
        stage.collect(self._clock.now_ns())
        stage.lose("the worker process ended")
        if isinstance(stage, Executor):
            for lane, model in zip(stage.lanes, info.models, strict=True):
                lane.service = self._learning.seed(lane, model)
                lead_ns = lead_of(info.hop_ns, max(model.warmup_ns.values(), default=0))
                name = lane.config.batching.named_policy
                lane.scheduler.use(policy_named(name, lane.default_deadline_ns, lead_ns))
        stage.attach(link)
        stage.health.pid = info.pid
        for lane, model in zip(stage.lanes, info.models, strict=True):
            if model.error:
                log.error("model_not_loaded", model=model.name, epoch=info.epoch, reason=model.error)
                stage.close(lane, NEVER_NS)
        if isinstance(stage, Executor):
            link.on_skipped = self._on_skipped
        collect = self._collect if isinstance(stage, Executor) else stage.collect
        self._group.watch_stage(link.fileno(), collect)
        self._group.settle()

    def _collect(self, now_ns: int) -> None:
        self._stage.collect(now_ns)
        self._learning.note(self._stage.lanes, now_ns)

    def _on_skipped(self, number: int) -> None:
        if isinstance(self._stage, Executor):
            self._stage.skipped(number)
            self._group.settle()

    def _on_lost(self, loss: WorkerLoss) -> None:
        stage, health = self._stage, self._stage.health
        retry_ns = self._clock.now_ns() + int(loss.again_s * 1e9)
        health.deaths += 1
        health.last_death, health.retry_ns = loss.reason, retry_ns
        link = self._links.pop(loss.epoch, None)
        if link is not None:
            stage.reaped(link, restarting=loss.restarting, killed=loss.killed, retry_ns=retry_ns)
        elif not loss.restarting:
            stage.fail(retry_ns)
        self._group.settle()

    def _on_spare(self, pid: int) -> None:
        self._stage.health.spare_pid = pid
