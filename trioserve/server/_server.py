"""A server: models, workers, connections, and the order in which they start and end.

workers                 supervisors of the worker processes        end last
└─ connections          the connection group                       ends when all is answered, or grace is over
└─ listeners         accept                                     cancelled first
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from trioserve.backends import Model, instance_config, signature_of
from trioserve.config import ModelConfig, ServerConfig
from trioserve.engine import Engine, Intake
from trioserve.request import MonotonicClock
from trioserve.transport import ConnectionGroup
from trioserve_protocol import Limits

from ._collapse import collapsed
from ._entrances import Ways, open_ways
from ._fleet import Fleet
from ._learning import Learning
from ._learnt import open_store
from ._lifecycle import Lifecycle
from ._memory import ServerMemory
from ._poll import poll_repository
from ._records import prepare_records, save_records

log = structlog.get_logger(__name__)

FAREWELL_S: Final = 0.5
"""Time for clients to read the last replies and close, seconds. A bundled client does so at once."""


class Server:
    """Serves models over TCP and a Unix socket.

    Args:
        models: configurations, or instances of `trioserve.Model` subclasses.
        config: addresses and limits.

    Raises:
        ValueError: there is no model, or two of one name and version.
    """

    def __init__(self, models: Sequence[ModelConfig | Model], config: ServerConfig | None = None) -> None:
        self.config: Final = config or ServerConfig()
        self.models: Final = [
            instance_config(model) if isinstance(model, Model) else model for model in models
        ]
        _check_names(self.models)
        self.addresses: tuple[str, ...] = ()
        """What clients connect to, as URLs; empty before the server has started."""
        self.admin_address = ""
        """Where the administration is, as a URL; empty before the server has started, or if it has no socket for it."""
        self._draining = trio.Event()

    def drain(self) -> None:
        """Tells the server to stop. Idempotent.

        It accepts no connection and no request any more, finishes what it has, and `serve` returns.
        """
        self._draining.set()

    @property
    def is_draining(self) -> bool:
        """Whether the server has been told to stop."""
        return self._draining.is_set()

    async def serve(  # noqa: ASYNC128 - `_serve_connections` reports the start
        self, *, task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until `drain` is called and everything accepted is answered, or `config.grace_s` is over.

        Args:
            task_status: started with `addresses` once every model is loaded and clients can connect.

        Raises:
            OSError: an address is taken, a file cannot be read, or `config.record` cannot be a directory.
            BadFile: a file that says who may connect makes no sense.
            WorkerStartError: a worker did not become ready.
            LoadError: a model could not be loaded.

        Cancellation: every connection is closed at once; the workers end within their grace.
        """
        with collapsed(), ServerMemory(self.models) as memory, contextlib.ExitStack() as owned:
            clock = MonotonicClock()
            ways = await open_ways(self.config, clock.now_ns())
            for way in (*ways.data, *ways.admin):
                owned.enter_context(way.listener)
            prepare_records(self.config.record)
            wire_limits = _wire_limits(self.config)
            engine = Engine(self.config, wire_limits, clock)
            for model, slab in zip(self.models, memory.slabs, strict=True):
                engine.add_model(model, signature_of(model), slab)
            group = ConnectionGroup(
                engine,
                Intake(engine),
                self.config,
                wire_limits,
                clock=clock,
                server_id=secrets.randbits(64),
            )
            owned.callback(group.close)
            learning = Learning(open_store(self.config.state_dir))
            async with trio.open_nursery() as workers:
                fleet = Fleet(engine, group, memory, learning, workers)
                async with trio.open_nursery() as starting:
                    starting.start_soon(self._stop_when_drained, starting.cancel_scope)
                    await fleet.start()
                    starting.cancel_scope.cancel()
                if not self.is_draining:
                    lifecycle = Lifecycle(fleet, group, self.config.models)
                    group.obey_orders(lifecycle.submit)
                    await self._serve_connections(engine, group, ways, lifecycle, task_status)
                    await learning.save(engine.lanes)
                workers.cancel_scope.cancel()

    async def _stop_when_drained(self, scope: trio.CancelScope) -> None:
        """A server that is told to stop while it starts does not finish starting."""
        await self._draining.wait()
        scope.cancel()

    async def _serve_connections(
        self,
        engine: Engine,
        group: ConnectionGroup,
        ways: Ways,
        lifecycle: Lifecycle,
        task_status: trio.TaskStatus[tuple[str, ...]],
    ) -> None:
        async with trio.open_nursery() as connections:
            await connections.start(group.run)
            async with trio.open_nursery() as accepting:
                for way in (*ways.data, *ways.admin):
                    await accepting.start(way.listener.run, partial(group.add, entrance=way.entrance))
                accepting.start_soon(lifecycle.run)
                if self.config.models and (seconds := self.config.repository.poll_seconds):
                    accepting.start_soon(poll_repository, self.config.models, seconds, lifecycle.submit)
                self.addresses = tuple(way.listener.address for way in ways.data)
                self.admin_address = next((way.listener.address for way in ways.admin), "")
                with _frozen_memory():
                    names = [model.name for model in self.models]
                    log.info(
                        "server_ready",
                        addresses=self.addresses,
                        admin=self.admin_address,
                        models=names,
                        pid=os.getpid(),
                    )
                    task_status.started(self.addresses)
                    await self._draining.wait()
                accepting.cancel_scope.cancel()
            await self._finish(engine, group)
            connections.cancel_scope.cancel()

    async def _finish(self, engine: Engine, group: ConnectionGroup) -> None:
        """Answers what was accepted; what is left when the grace is over is answered with an error."""
        log.info("server_draining", unanswered=engine.unanswered, grace_s=self.config.grace_s)
        engine.drain()
        group.goaway("the server is stopping")
        with trio.move_on_after(self.config.grace_s):
            await group.wait_quiet()
        if engine.unanswered or group.unsent_nbytes:
            log.warning("drain_grace_over", unanswered=engine.unanswered, unsent_nbytes=group.unsent_nbytes)
            engine.abort()
        group.hang_up()
        with trio.move_on_after(FAREWELL_S):
            await group.wait_empty()
        save_records(engine.lanes, self.config.record)
        log.info("server_stopped")


@contextlib.contextmanager
def _frozen_memory() -> Iterator[None]:
    """What is alive now stays alive: no collection looks at it again for the time of the block.

    A full collection of it would stop the loop for tens of milliseconds. Afterwards it is garbage like any other, the
    slabs' memory with it.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _check_names(models: Sequence[ModelConfig]) -> None:
    if not models:
        raise ValueError("models: expected at least one, got none")
    seen: set[tuple[str, int]] = set()
    for model in models:
        key = model.name, model.version
        if key in seen:
            raise ValueError(f"models: {model.name} version {model.version} is there twice")
        seen.add(key)


def _wire_limits(config: ServerConfig) -> Limits:
    limits = config.limits
    return Limits(
        max_frame_nbytes=limits.max_frame_nbytes,
        max_meta_nbytes=limits.max_meta_nbytes,
        max_ndim=limits.max_ndim,
        max_tensors=limits.max_tensors,
        max_bytes_elements=limits.max_bytes_elements,
    )
