"""The models of a server, the workers that serve them, and how both change while they serve.

A change starts new workers beside the old ones, with all the models that are to be there afterwards. When these are
loaded, warm and tested, the old workers get nothing more, finish what they have, and in one turn without a wait the
new ones take their places. What has gone wrong until then ends the new workers, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trioserve.backends import LoadError, signature_of
from trioserve.batching import ServiceModel
from trioserve.engine import TextLane, dismiss, give_up, hand_over, is_over, retire
from trioserve.execution import WorkerModel, WorkerSpec, WorkerStartError
from trioserve_protocol import ErrorCode

from ._contents import contents_of
from ._records import save_records
from ._stages import StageKeeper
from ._swap import Change, ChangeFailed, Key, Seat, Swap, check_ready, key_of, plan

if TYPE_CHECKING:
    from trioserve.config import ModelConfig
    from trioserve.engine import Engine, Executor, Lane, Tokenizer
    from trioserve.execution import ReadyInfo, WorkerKind
    from trioserve.memory import Slab
    from trioserve.transport import ConnectionGroup

    from ._learning import Learning
    from ._memory import ServerMemory

log = structlog.get_logger(__name__)

UNDO_LIMIT_S: Final = 15.0
"""Longest that ending a worker which is not needed may take, seconds; it is killed long before."""


class Fleet:
    """Starts the workers of a server, and changes its models.

    Args:
        engine: with the models of the start.
        group: of the connections.
        memory: of the models.
        learning: what is known of their run times.
        workers: supervises the workers for the rest of the server's life.
    """

    def __init__(
        self,
        engine: Engine,
        group: ConnectionGroup,
        memory: ServerMemory,
        learning: Learning,
        workers: trio.Nursery,
    ) -> None:
        self._engine: Final = engine
        self._group: Final = group
        self._memory: Final = memory
        self._learning: Final = learning
        self._workers: Final = workers
        self._executor: StageKeeper | None = None
        self._tokenizer: StageKeeper | None = None
        self._contents: Final[dict[Lane, str]] = {}

    @property
    def models(self) -> list[ModelConfig]:
        """What is served, in the order of the worker."""
        return [lane.config for lane in self._engine.served]

    # ---------------------------------------------------------------- the start

    async def start(self) -> None:
        """Starts one executor for all models and, if there is text, one tokenizer; returns when they serve.

        Raises:
            WorkerStartError: a worker did not become ready.
            LoadError: a model could not be loaded.
        """
        lanes = self._engine.lanes
        await self._learning.load(lanes, self._workers)
        marks = await trio.to_thread.run_sync(_marks_of, [lane.config for lane in lanes])
        self._contents.update(zip(lanes, marks, strict=True))
        known = [self._worker_model(lane.config, lane.slab) for lane in lanes]
        texts = [lane for lane in lanes if isinstance(lane, TextLane)]
        async with trio.open_nursery() as starting:
            self._executor = self._keeper(self._engine.add_executor(lanes))
            starting.start_soon(self._executor.start, self._workers, self._spec("executor", known))
            if texts:
                self._tokenizer = self._keeper(self._engine.add_tokenizer(texts))
                spec = self._spec("tokenizer", _with_text(known))
                starting.start_soon(self._tokenizer.start, self._workers, spec)

    def _keeper(self, stage: Executor | Tokenizer | None = None) -> StageKeeper:
        return StageKeeper(stage, self._group, self._learning)

    def _worker_model(self, config: ModelConfig, slab: Slab) -> WorkerModel:
        return WorkerModel(config, slab.layout, self._memory.arena_of(slab))

    def _spec(self, kind: WorkerKind, models: Sequence[WorkerModel], *, gently: bool = False) -> WorkerSpec:
        workers = self._engine.config.workers
        return WorkerSpec(
            kind=kind,
            models=tuple(models),
            gently=gently,
            depth=workers.depth,
            start_timeout_s=workers.start_timeout_s,
            grace_s=workers.stop_grace_s,
            restart_backoff_s=workers.restart_backoff_s,
            max_restarts=workers.max_restarts,
            restart_window_s=workers.restart_window_s,
            retry_failed_s=workers.retry_failed_s,
            spare=workers.spare if kind == "executor" else 0,
        )

    # ---------------------------------------------------------------- a change

    async def changed(self, configs: Sequence[ModelConfig]) -> set[Key]:
        """Which of some models are not served as they are now: by their configuration or their files."""
        marks = await trio.to_thread.run_sync(_marks_of, configs)
        served = {key_of(lane.config): (lane.config, self._contents[lane]) for lane in self._engine.served}
        return {
            key_of(config)
            for config, mark in zip(configs, marks, strict=True)
            if served.get(key_of(config)) != (config, mark)
        }

    async def change(self, change: Change) -> Swap:
        """Serves other models from now on. One change at a time, each to its `finish`.

        Args:
            change: what is to be served.

        Returns:
            What is left to be finished: the old models still have requests.

        Raises:
            ChangeFailed: the models are what they were.

        Cancellation: the models are what they were.
        """
        marks = await trio.to_thread.run_sync(_marks_of, change.models)
        swap = plan(change, self._engine.served, marks)
        self._check_others(swap)
        try:
            await self._make_ready(swap)
            async with self._holding(swap):
                for keeper in swap.newcomers:
                    if keeper.lost:
                        raise ChangeFailed("load", f"the new worker was lost: {keeper.lost}")
                self._switch(swap)
        except BaseException:
            with trio.move_on_after(UNDO_LIMIT_S, shield=True):
                await self._undo(swap)
            raise
        return swap

    def _check_others(self, swap: Swap) -> None:
        """All models are loaded again: those that are not meant must be what they are.

        Raises:
            ChangeFailed: the files of one have changed.
        """
        for seat in swap.seats:
            if not seat.is_fresh and seat.lane is not None and self._contents[seat.lane] != seat.contents:
                reason = (
                    f"the files of {seat.config.name} have changed since it was loaded, and it would be loaded too:"
                    " an order without a name reloads all that has changed"
                )
                raise ChangeFailed("configuration", reason)

    async def _make_ready(self, swap: Swap) -> None:
        """Starts the new workers and waits until they could serve.

        Raises:
            ChangeFailed: they cannot.
        """
        learnt = await self._learning.look([seat.config for seat in swap.seats])
        infos: dict[WorkerKind, ReadyInfo] = {}
        try:
            for seat, file in zip(swap.seats, learnt, strict=True):
                seat.learnt = file
                seat.slab = seat.lane.slab if seat.lane is not None else self._memory.make(seat.config)[1]
            models = [self._worker_model(seat.config, seat.slab) for seat in swap.seats if seat.slab]
            texts = _with_text(models) if swap.with_texts else []
            async with trio.open_nursery() as starting:
                if models:
                    swap.executor = self._keeper()
                    starting.start_soon(self._load, swap.executor, "executor", models, infos)
                if texts:
                    swap.tokenizer = self._keeper()
                    starting.start_soon(self._load, swap.tokenizer, "tokenizer", texts, infos)
        except* (WorkerStartError, LoadError, OSError) as group:
            failure = group.exceptions[0]
        else:
            check_ready(swap, infos)
            return
        raise ChangeFailed("load", str(failure))

    async def _load(
        self,
        keeper: StageKeeper,
        kind: WorkerKind,
        models: Sequence[WorkerModel],
        infos: dict[WorkerKind, ReadyInfo],
    ) -> None:
        infos[kind] = await keeper.start(self._workers, self._spec(kind, models, gently=True))

    @asynccontextmanager
    async def _holding(self, swap: Swap) -> AsyncIterator[None]:
        """The block runs while no row of the models is with an old worker. Afterwards these get what is theirs.

        The executor first, since a batch takes longer than a burst of texts: so both are idle for a moment only.

        Raises:
            ChangeFailed: what one has takes too long.
        """
        limit_s = self._engine.config.workers.stop_grace_s
        leaving = [self._executor, self._tokenizer if swap.with_texts else None]
        held = [keeper.stage for keeper in leaving if keeper is not None]
        try:
            for stage in held:
                stage.held = True
                with trio.move_on_after(limit_s) as limit:
                    await self._group.wait_until(lambda stage=stage: stage.is_clear)  # type: ignore[misc]
                if limit.cancelled_caught:
                    raise ChangeFailed(
                        "switch", f"the old worker did not finish its batch within {limit_s:g} s"
                    )
            yield
        finally:
            for stage in held:
                stage.held = False
            self._group.settle()

    def _switch(self, swap: Swap) -> None:
        """The new workers take over, in one go."""
        engine = self._engine
        lanes = [self._seated(seat) for seat in swap.seats]
        fresh = [
            lane
            for seat, lane in zip(swap.seats, lanes, strict=True)
            if lane is not seat.lane or seat.is_fresh
        ]
        for lane in swap.retired:
            del self._contents[lane]
        retire(engine, swap.retired)
        self._group.forget_models(swap.retired)
        texts = [lane for lane in lanes if isinstance(lane, TextLane)] if swap.with_texts else []
        old, former = self._executor, self._tokenizer if swap.with_texts else None
        swap.leaving = [keeper for keeper in (old, former) if keeper is not None]
        stages = hand_over(engine, lanes, texts, [keeper.stage for keeper in swap.leaving])
        self._executor = swap.executor
        if swap.with_texts:
            self._tokenizer = swap.tokenizer
        for keeper, stage in zip((swap.executor, swap.tokenizer), stages, strict=True):
            if keeper is not None and stage is not None:
                keeper.adopt(stage, fresh)
        log.info("models_changed", models=[f"{config.name}:{config.version}" for config in self.models])

    def _seated(self, seat: Seat) -> Lane:
        """The lane that serves a model from now on."""
        lane, config = seat.lane, seat.config
        if lane is None:
            if seat.slab is None:
                raise AssertionError("a model without memory is served: this is a bug")
            lane = self._engine.add_model(config, signature_of(config), seat.slab)
            self._learning.adopt(lane, seat.learnt)
        else:
            lane.config = config
            lane.closed_by.clear()
            if self._learning.adopt(lane, seat.learnt):
                lane.service = ServiceModel({})
                self._engine.trust_inputs(lane)
            if lane.closed_code is not ErrorCode.DRAINING:
                lane.closed_code = (
                    ErrorCode.LOADING
                )  # opened by its worker, also if its last one was lost for good
        self._contents[lane] = seat.contents
        return lane

    async def _undo(self, swap: Swap) -> None:
        """Ends what was started for a change that failed."""
        for keeper in swap.newcomers:
            await keeper.stop()
        for seat in swap.seats:
            if seat.lane is None and seat.slab is not None:
                self._memory.release(seat.slab)

    async def finish(self, swap: Swap) -> None:
        """Waits for the last requests of models that went, then ends the workers that have nothing left.

        Cancellation: they end with the server.
        """
        engine, retired = self._engine, swap.retired
        with trio.move_on_after(engine.config.grace_s):
            await self._group.wait_until(lambda: all(map(is_over, retired)))
        give_up(engine, retired, "the model is not served any more")
        self._group.settle()
        for keeper in swap.leaving:
            await keeper.stop()
        await self._learning.save(retired)
        save_records(retired, engine.config.record)
        for lane in retired:
            self._learning.forget(lane)
            self._memory.release(lane.slab)
        dismiss(engine, [keeper.stage for keeper in swap.leaving], retired)


def _marks_of(configs: Sequence[ModelConfig]) -> list[str]:
    return [contents_of(config) for config in configs]


def _with_text(models: Sequence[WorkerModel]) -> list[WorkerModel]:
    return [model for model in models if model.config.tokenizer]
