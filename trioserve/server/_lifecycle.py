"""Orders to load, reload and unload models, obeyed one after the other.

They come from administrators' frames, and from whoever watches the repository.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from trioserve.config import ConfigError, ModelConfig, find_models, load_repository
from trioserve_protocol import ErrorCode

from ._swap import Change, ChangeFailed, Key, Swap, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve.transport import ConnectionGroup, ModelOrder

    from ._fleet import Fleet

log = structlog.get_logger(__name__)

MAX_WAITING: Final = 16
"""Orders that wait for the ones before them; more are refused."""


class Lifecycle:
    """Obeys orders.

    Args:
        fleet: the models.
        group: of the connections.
        repository: where models come from; empty if they were given by a program, and can only be loaded again.
    """

    def __init__(self, fleet: Fleet, group: ConnectionGroup, repository: str) -> None:
        self._fleet: Final = fleet
        self._group: Final = group
        self._repository: Final = Path(repository) if repository else None
        self._sender, self._receiver = trio.open_memory_channel["ModelOrder"](MAX_WAITING)
        self._closed = False

    def submit(self, order: ModelOrder) -> None:
        """Takes an order; it is answered when it has been obeyed. Never waits."""
        if self._closed:
            order.refuse(ErrorCode.DRAINING, "the server is stopping")
            return
        try:
            self._sender.send_nowait(order)
        except trio.WouldBlock:
            order.refuse(ErrorCode.RESOURCE_EXHAUSTED, f"{MAX_WAITING} changes of the models wait already")

    async def run(self) -> None:
        """Obeys until cancelled.

        Cancellation: the order that is being obeyed changes nothing; it and those that wait are refused.
        """
        order: ModelOrder | None = None
        try:
            async for order in self._receiver:
                swap = await self._obey(order)
                order = None  # noqa: PLW2901  it is answered
                if swap is not None:
                    await self._fleet.finish(swap)
        finally:
            self._closed = True
            waiting = [] if order is None else [order]
            while True:
                try:
                    waiting.append(self._receiver.receive_nowait())
                except trio.WouldBlock:
                    break
            for order in waiting:
                order.refuse(ErrorCode.DRAINING, "the server is stopping")

    async def _obey(self, order: ModelOrder) -> Swap | None:
        """Obeys one order and answers it; returns what is to be finished."""
        began_s = time.monotonic()
        swap: Swap | None = None
        try:
            change = await self.change_for(order)
            if change is not None:
                swap = await self._fleet.change(change)
        except UnknownModel as error:
            self._refuse(order, error.code, str(error))
        except ConfigError as error:
            self._refuse(order, ErrorCode.ABORTED, f"configuration: {error}")
        except ChangeFailed as error:
            self._refuse(order, ErrorCode.ABORTED, str(error))
        else:
            order.answer(_answer(swap, time.monotonic() - began_s))
            log.info("model_order_obeyed", order=str(order), took_s=round(time.monotonic() - began_s, 3))
        self._group.settle()
        return swap

    def _refuse(self, order: ModelOrder, code: ErrorCode, reason: str) -> None:
        log.error("model_order_failed", order=str(order), reason=reason)
        order.refuse(code, f"{order} failed, nothing has changed: {reason}")

    async def change_for(self, order: ModelOrder) -> Change | None:
        """What an order comes to; None if it is so already.

        Raises:
            UnknownModel: there is no such model.
            ConfigError: its configuration is not usable.
        """
        served = self._fleet.models
        if not order.model:
            return await self._change_for_all(order, served)
        mine = [config for config in served if config.name == order.model]
        meant = [config for config in mine if order.version in (0, config.version)]
        others = [config for config in served if config not in meant]
        if order.op == "unload":
            if not meant:
                raise UnknownModel(order, mine)
            return Change(others, ())
        if order.op == "load" and meant:
            return None
        wanted = await self._read(order, meant)
        if not wanted:
            raise UnknownModel(order, mine)
        return Change([*others, *wanted], {key_of(config) for config in wanted})

    async def _change_for_all(self, order: ModelOrder, served: Sequence[ModelConfig]) -> Change | None:
        """What the whole repository comes to: what is new in it, what has changed, and what is gone."""
        if order.op != "reload" or self._repository is None:
            raise UnknownModel(order, ())
        wanted = await trio.to_thread.run_sync(load_repository, self._repository)
        fresh = await self._fleet.changed(wanted)
        if not fresh and {key_of(config) for config in wanted} == {key_of(config) for config in served}:
            return None
        return Change(wanted, fresh)

    async def _read(self, order: ModelOrder, meant: Sequence[ModelConfig]) -> Sequence[ModelConfig]:
        """What the repository has of a model now; what a program has given is what it was."""
        if self._repository is None:
            return meant
        return await trio.to_thread.run_sync(find_models, self._repository, order.model, order.version)


class UnknownModel(Exception):
    """There is no such model, or no such version of it."""

    def __init__(self, order: ModelOrder, known: Sequence[ModelConfig]) -> None:
        """Takes what was asked for, and the versions of that model that there are."""
        self.code: Final = (
            ErrorCode.VERSION_NOT_FOUND if known and order.version else ErrorCode.MODEL_NOT_FOUND
        )
        has = ", ".join(str(config.version) for config in known)
        super().__init__("no such model" + (f", there are versions {has}" if has else ""))


def _answer(swap: Swap | None, took_s: float) -> dict[str, Any]:
    """What who gave an order is told."""
    loaded: list[Key] = []
    unloaded: list[Key] = []
    if swap is not None:
        loaded = [key_of(seat.config) for seat in swap.seats if seat.is_fresh]
        unloaded = [key for lane in swap.retired if (key := key_of(lane.config)) not in loaded]
    return {
        "changed": swap is not None,
        "loaded": [{"name": name, "version": version} for name, version in loaded],
        "unloaded": [{"name": name, "version": version} for name, version in unloaded],
        "took_s": took_s,
    }
