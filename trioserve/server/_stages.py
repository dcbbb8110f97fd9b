"""The bond between a worker process and the engine's stage for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
import trio

from trioserve.backends import LoadError
from trioserve.batching import policy_named
from trioserve.engine import Executor
from trioserve.execution import supervise_worker
from trioserve.request import NEVER_NS

from ._swap import fault_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from trioserve.engine import Lane, Tokenizer
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


class _Waiting(NamedTuple):
    """A worker that is ready and has no stage yet."""

    link: StageLink
    info: ReadyInfo


class StageKeeper:
    """Attaches each start of a worker to its stage, and detaches it when the worker is lost.

    Args:
        stage: the engine's side; None for a worker that is to take another one's place, and gets its stage by `adopt`.
        group: polls the worker's link.
        learning: seeds the service-time models, and is told when there may be something to save.
    """

    def __init__(
        self, stage: Executor | Tokenizer | None, group: ConnectionGroup, learning: Learning
    ) -> None:
        self._stage: Executor | Tokenizer | None = None
        self._learning: Final = learning
        self._group: Final = group
        self._scope: Final = trio.CancelScope()
        self._ended: Final = trio.Event()
        self._waiting: _Waiting | None = None
        self._links: Final[dict[int, StageLink]] = {}
        """By epoch: of the workers that are not reaped yet."""
        self._spare_pid = 0
        self.lost = ""
        """How a worker ended that was ready and had no stage yet; empty if it did not."""
        if stage is not None:
            self._take(stage)

    @property
    def stage(self) -> Executor | Tokenizer:
        """The engine's side; there must be one."""
        if self._stage is None:
            raise AssertionError("a worker without a stage is asked for it: this is a bug")
        return self._stage

    def _take(self, stage: Executor | Tokenizer) -> None:
        self._stage = stage
        self._clock = stage.lanes[0].clock
        stage.health.kind = "executor" if isinstance(stage, Executor) else "tokenizer"
        stage.health.spare_pid = self._spare_pid
        stage.on_detach = self._group.unwatch_stage

    async def start(self, nursery: trio.Nursery, spec: WorkerSpec) -> ReadyInfo:
        """Starts the worker and returns when it serves, or, if it has no stage yet, when it could.

        Args:
            nursery: supervises it for the rest of its life.
            spec: what it is.

        Raises:
            WorkerStartError: it did not become ready.
            LoadError: a model of it could not be loaded; all of them are named. Not if it has no stage yet: whoever
                starts it then looks at what it says of its models.

        Cancellation: the worker is ended.
        """

        async def supervise(  # noqa: ASYNC128 - `supervise_worker` reports the start
            *, task_status: trio.TaskStatus[ReadyInfo]
        ) -> None:
            try:
                with self._scope:
                    await supervise_worker(
                        spec,
                        on_ready=self._on_ready,
                        on_lost=self._on_lost,
                        on_spare=self._on_spare,
                        task_status=task_status,
                    )
            finally:
                self._end()

        info: ReadyInfo = await nursery.start(supervise)
        if self._stage is not None and (faults := faults_of(info)):
            raise LoadError("; ".join(faults))
        return info

    def _end(self) -> None:
        """The worker has been told to end, and has ended."""
        if self._stage is not None:
            self._stage.lose("the server stops")
        elif self._waiting is not None:
            self._waiting.link.close()
        self._ended.set()

    async def stop(self) -> None:
        """Ends the worker: it finishes what it holds, within its grace. Idempotent.

        Cancellation: it ends all the same, in the nursery that supervises it.
        """
        self._scope.cancel()
        await self._ended.wait()
        if self._stage is not None:
            self._stage.reaped(restarting=True)  # what it had not finished in its grace is free now

    def adopt(self, stage: Executor | Tokenizer, fresh: Collection[Lane]) -> None:
        """Gives a worker that is ready its stage: from here on it serves.

        Args:
            stage: the engine's side, new.
            fresh: the models that are other ones than before; what was learnt of the others stays.
        """
        if self._waiting is None:
            raise AssertionError("a worker that is not ready gets a stage: this is a bug")
        link, info = self._waiting
        self._waiting = None
        self._take(stage)
        self._attach(link, info, fresh)

    def _on_ready(self, link: StageLink, info: ReadyInfo) -> None:
        self._links[info.epoch] = link
        if self._stage is None:
            self._waiting = _Waiting(link, info)
            return
        # Nobody may have noticed yet that the last one is gone, or it has closed only one of its ends.
        self._stage.collect(self._clock.now_ns())
        self._stage.lose("the worker process ended")
        self._attach(link, info, self._stage.lanes)

    def _attach(self, link: StageLink, info: ReadyInfo, seeded: Collection[Lane]) -> None:
        stage = self.stage
        ready = dict(zip(stage.number_of, info.models, strict=True))
        served = [(lane, ready[lane]) for lane in stage.lanes]
        if isinstance(stage, Executor):
            for lane, model in served:
                if lane in seeded or not lane.service.known:
                    lane.service = self._learning.seed(lane, model)
                lead_ns = lead_of(info.hop_ns, max(model.warmup_ns.values(), default=0))
                name = lane.config.batching.named_policy
                lane.scheduler.use(policy_named(name, lane.default_deadline_ns, lead_ns))
        stage.attach(link)
        stage.health.pid = info.pid
        for lane, model in served:
            if model.error:
                log.error("model_not_loaded", model=model.name, epoch=info.epoch, reason=model.error)
                stage.close(lane, NEVER_NS)
        if isinstance(stage, Executor):
            link.on_skipped = self._on_skipped
        collect = self._collect if isinstance(stage, Executor) else stage.collect
        self._group.watch_stage(link.fileno(), collect)
        self._group.settle()

    def _collect(self, now_ns: int) -> None:
        self.stage.collect(now_ns)
        self._learning.note(self.stage.lanes, now_ns)

    def _on_skipped(self, number: int) -> None:
        if isinstance(self._stage, Executor):
            self._stage.skipped(number)
            self._group.settle()

    def _on_lost(self, loss: WorkerLoss) -> None:
        link = self._links.pop(loss.epoch, None)
        if self._stage is None:
            self.lost = loss.reason
            if self._waiting is not None:
                self._waiting.link.close()
                self._waiting = None
            self._scope.cancel()  # nobody waits for its next start
            return
        stage, health = self._stage, self._stage.health
        retry_ns = self._clock.now_ns() + int(loss.again_s * 1e9)
        health.deaths += 1
        health.last_death, health.retry_ns = loss.reason, retry_ns
        if link is not None:
            stage.reaped(link, restarting=loss.restarting, killed=loss.killed, retry_ns=retry_ns)
        elif not loss.restarting:
            stage.fail(retry_ns)
        self._group.settle()

    def _on_spare(self, pid: int) -> None:
        self._spare_pid = pid
        if self._stage is not None:
            self._stage.health.spare_pid = pid


def faults_of(info: ReadyInfo) -> list[str]:
    """Why models of a worker do not serve."""
    return [fault_of(model.name, model.error) for model in info.models if model.error]
