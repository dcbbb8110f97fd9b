"""A whole program around a server: logging, signals, exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from trioserve.backends import LoadError, Model, end_import, importing_model
from trioserve.config import ModelConfig, ServerConfig
from trioserve.execution import WorkerStartError
from trioserve.observability import configure_logging
from trioserve.transport import BadFile

from ._collapse import collapsed
from ._server import Server

log = structlog.get_logger(__name__)

SWITCH_INTERVAL_S: Final = 0.001
"""How long another thread of this process may keep the interpreter from the loop, seconds."""


def run(
    models: Model | ModelConfig | Sequence[Model | ModelConfig],
    *,
    host: str = "127.0.0.1",
    port: int = 7001,
    unix_path: str = "",
    config: ServerConfig | None = None,
) -> None:
    """Serves models until SIGTERM or Ctrl-C, then finishes what was accepted. A second signal ends at once.

    The models run in a worker process that imports this program's file again to make them: the call then ends that
    import, so it needs no `if __name__ == "__main__"`.

    Args:
        models: one or several instances of `trioserve.Model` subclasses whose classes stand at the top of a file.
        host: address to listen on; empty for no TCP.
        port: TCP port, 0 for a free one.
        unix_path: path of a Unix socket, empty for none.
        config: everything else; `host`, `port` and `unix_path` are then taken from it.

    Raises:
        SystemExit: the server could not start; the reason is logged.
    """
    if importing_model():
        end_import()
    chosen = config or ServerConfig(host=host, port=port, unix_path=unix_path)
    several = [models] if isinstance(models, Model | ModelConfig) else list(models)
    status = serve_forever(chosen, several)
    if status:
        sys.exit(status)


def serve_forever(config: ServerConfig, models: Sequence[Model | ModelConfig]) -> int:
    """Runs a server with logging and signals.

    Returns:
        Exit status: 0 after an orderly end, 1 if the server could not start.
    """
    configure_logging(config.log_level, config.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = Server(models, config)
    try:
        trio.run(_serve_with_signals, server)
    except (OSError, BadFile, LoadError, WorkerStartError) as error:
        log.error("server_failed", reason=str(error))  # noqa: TRY400  the reason is for the operator, not for us
        return 1
    return 0


async def _serve_with_signals(server: Server) -> None:
    with collapsed():
        async with trio.open_nursery() as nursery:
            await nursery.start(_obey_signals, server, nursery.cancel_scope)
            await server.serve()
            nursery.cancel_scope.cancel()


async def _obey_signals(
    server: Server,
    everything: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if server.is_draining:
                log.warning("server_stopping_at_once")
                everything.cancel()
                return
            server.drain()
