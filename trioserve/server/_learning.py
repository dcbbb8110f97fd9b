"""Service-time models from a worker's warm-up and from what was learnt before, and the saving of what is learnt."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from trioserve.batching import ServiceModel

from ._learnt import LearntFile, device_name, model_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve.config import ModelConfig
    from trioserve.engine import Lane
    from trioserve.execution import ModelReady

    from ._learnt import LearntStore

log = structlog.get_logger(__name__)

FAR: Final = 2.0
"""A model whose times are this many times longer or shorter than those of the warm-up was learnt elsewhere."""

SAVE_EVERY_NS: Final = 60_000_000_000
"""Least time between two savings while the server serves."""

SAVE_LIMIT_S: Final = 1.0
"""Longest that a server that stops waits for its file system, seconds."""


def seeded(
    name: str,
    warm: ServiceModel,
    sizes: Sequence[int],
    state: Mapping[str, Any] | None,
) -> ServiceModel:
    """A service-time model to start with: half of it is the warm-up, half what was learnt before, if they agree.

    The warm-up is of now and of an idle machine, what was learnt is of many more batches, under load.

    Args:
        name: of the model, for the log.
        warm: made of the warm-up.
        sizes: that were warmed up.
        state: of what was learnt before; None if nothing was.
    """
    if state is None:
        return warm
    try:
        learnt = ServiceModel.from_state(state)
    except ValueError as error:
        log.warning("learnt_model_refused", model=name, reason=str(error))
        return warm
    if not sizes or not learnt.known:
        return learnt if learnt.known else warm
    ratio = statistics.median(learnt.mean_ns(size) / max(1.0, warm.mean_ns(size)) for size in sizes)
    if not 1 / FAR <= ratio <= FAR:
        log.warning("learnt_model_ignored", model=name, reason="far off the warm-up", ratio=round(ratio, 3))
        return warm
    model = ServiceModel(
        {size: round((warm.mean_ns(size) + learnt.mean_ns(size)) / 2) for size in sizes},
        {size: round((warm.deviation_ns(size) + learnt.deviation_ns(size)) / 2) for size in sizes},
        max_units=warm.max_units,
    )
    model.k = learnt.k
    log.info("learnt_model_used", model=name, batches=learnt.batches, ratio=round(ratio, 3))
    return model


class Learning:
    """The service-time models of a server's models between two starts.

    Args:
        store: where they are kept; None for nowhere.
    """

    def __init__(self, store: LearntStore | None) -> None:
        self._store: Final = store
        self._files: Final[dict[int, LearntFile]] = {}
        """By the lane's identity: what stands in its file."""
        self._saved_batches: Final[dict[int, int]] = {}
        self._due_ns = 0
        self._nursery: trio.Nursery | None = None
        self._saving = False

    async def load(self, lanes: Sequence[Lane], nursery: trio.Nursery) -> None:
        """Reads what was learnt of some models.

        Args:
            lanes: the models.
            nursery: what is learnt is saved in it from then on.
        """
        self._nursery = nursery
        files = await self.look([lane.config for lane in lanes])
        for lane, file in zip(lanes, files, strict=True):
            self.adopt(lane, file)

    async def look(self, configs: Sequence[ModelConfig]) -> list[LearntFile | None]:
        """What was learnt of some models; None for one whose file cannot be read, which is for its worker to say."""
        return await trio.to_thread.run_sync(lambda: [self._look(config) for config in configs])

    def _look(self, config: ModelConfig) -> LearntFile | None:
        device = device_name(config.threads)
        try:
            key = model_key(config, device)
        except OSError as error:
            log.debug("model_not_hashed", model=config.name, reason=str(error))
            return None
        state = self._store.load(key, config.name) if self._store is not None else None
        return LearntFile(config.name, device, key, state or {})

    def adopt(self, lane: Lane, file: LearntFile | None) -> bool:
        """Notes what a lane serves from now on.

        Args:
            lane: the model.
            file: what `look` said of it.

        Returns:
            Whether that is another model than before, of which what was learnt says nothing.
        """
        before = self._files.get(id(lane))
        if file is None:
            self._files.pop(id(lane), None)
            return True
        self._files[id(lane)] = file
        return before is None or before.key != file.key

    def forget(self, lane: Lane) -> None:
        """A model is not served any more."""
        self._files.pop(id(lane), None)
        self._saved_batches.pop(id(lane), None)

    def seed(self, lane: Lane, ready: ModelReady) -> ServiceModel:
        """The service-time model for a worker that has become ready.

        One that takes the place of another goes on with what that one taught.

        Args:
            lane: the model.
            ready: what its warm-up says.
        """
        rows = lane.max_rows if lane.config.tokenizer is None else 0
        warm = ServiceModel(ready.warmup_ns, ready.deviation_ns, max_units=rows)
        file = self._files.get(id(lane))
        state = lane.service.to_state() if lane.service.batches else file and file.state
        self._saved_batches[id(lane)] = 0
        return seeded(lane.config.name, warm, sorted(ready.warmup_ns), state or None)

    # ---------------------------------------------------------------- saving

    def note(self, lanes: Sequence[Lane], now_ns: int) -> None:
        """Batches have come back: saves what was learnt if that was long ago. An idle server is not woken for it.

        Args:
            lanes: the models that they may be of.
            now_ns: the time of the event.
        """
        if now_ns < self._due_ns:
            return
        first, self._due_ns = not self._due_ns, now_ns + SAVE_EVERY_NS
        if first or self._saving or self._nursery is None or self._store is None:
            return
        if files := self._news(lanes):
            self._saving = True
            self._nursery.start_soon(self._save_aside, files)

    async def _save_aside(self, files: list[LearntFile]) -> None:
        try:
            await trio.to_thread.run_sync(self._save, files, abandon_on_cancel=True)
        finally:
            self._saving = False

    async def save(self, lanes: Sequence[Lane]) -> None:
        """Saves what was learnt; when the server stops.

        Cancellation: the thread that writes is left to itself; a file is replaced as a whole or not at all.
        """
        with trio.move_on_after(SAVE_LIMIT_S):
            await trio.to_thread.run_sync(self._save, self._news(lanes), abandon_on_cancel=True)

    def _save(self, files: list[LearntFile]) -> None:
        if self._store is not None:
            for file in files:
                self._store.save(file)

    def _news(self, lanes: Sequence[Lane]) -> list[LearntFile]:
        """What is to be written: of models that have learnt something since the last time."""
        news = []
        for lane in lanes:
            file, batches = self._files.get(id(lane)), lane.service.batches
            if file is not None and batches > self._saved_batches.get(id(lane), 0):
                self._saved_batches[id(lane)] = batches
                news.append(LearntFile(file.model, file.device, file.key, lane.service.to_state()))
        return news
