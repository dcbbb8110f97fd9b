"""A server inside a test's own nursery, with real sockets and real workers."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import trioserve
from tests.e2e.models import Echo, Scale
from trioserve.backends import LoadError
from trioserve.config import ModelConfig, ServerConfig, TensorConfig
from trioserve.execution import WorkerStartError
from trioserve.server import Server
from trioserve.transport import ConnectionGroup

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Neither descriptors nor processes."""
    before = left()
    yield
    assert left() == before


def left() -> tuple[int, set[str]]:
    """How many descriptors are open, and which child processes there are.

    A slab's memory goes, with the descriptor that maps it, when the last array over it is collected.
    """
    gc.collect()
    children = {
        pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()
    }
    return len(list(Path("/proc/self/fd").iterdir())), children


@asynccontextmanager
async def running(*models: Any, **config: Any) -> AsyncIterator[Server]:
    server = Server(list(models), ServerConfig(port=0, **config))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            yield server
            server.drain()


async def test_it_serves_and_stops_when_it_is_drained() -> None:
    async with running(Scale(), Echo()) as server:
        [address] = server.addresses
        async with trioserve.client.connect(address) as client:
            result = await client.infer("scale", np.ones((1, 4), np.float32))
            assert result.tolist() == [[2, 2, 2, 2]]
        assert not server.is_draining
    assert server.is_draining


async def test_draining_twice_is_draining() -> None:
    async with running(Scale()) as server:
        server.drain()
        server.drain()


async def test_cancelled_it_closes_everything_at_once() -> None:
    server = Server([Scale()], ServerConfig(port=0))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(server.serve)
            host, _, port = address.removeprefix("tcp://").partition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(bytes.fromhex("54530132") + bytes(28))
            assert len(await stream.receive_some()) == 32
            nursery.cancel_scope.cancel()
        assert await stream.receive_some() == b""
        await stream.aclose()


async def test_drained_while_it_starts_it_does_not_finish_starting() -> None:
    server = Server([Scale()], ServerConfig(port=0))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.sleep(0.05)
            server.drain()
    assert server.addresses == ()


# ---------------------------------------------------------------- what goes wrong at the start


async def failing(*models: Any, **config: Any) -> BaseException:
    server = Server(list(models), ServerConfig(**({"port": 0} | config)))
    with trio.fail_after(30), pytest.raises(Exception) as failure:
        await server.serve()
    assert not isinstance(failure.value, BaseExceptionGroup)
    return failure.value


async def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = await failing(Scale(), port=other.getsockname()[1])
    assert isinstance(error, OSError)


async def test_a_taken_unix_path_leaves_the_tcp_port_free(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert isinstance(await failing(Scale(), unix_path=str(path)), FileExistsError)


async def test_a_taken_port_leaves_no_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = await failing(Scale(), port=other.getsockname()[1], unix_path=str(path))
    assert isinstance(error, OSError)
    assert not path.exists()


async def test_no_address_at_all() -> None:
    assert "at least one address" in str(await failing(Scale(), host=""))


async def test_models_that_cannot_be_loaded_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise RuntimeError('no way')")
    error = await failing(file_model(tmp_path, "first"), Scale(), file_model(tmp_path, "second"))
    assert isinstance(error, LoadError)
    assert "first" in str(error)
    assert "second" in str(error)


def file_model(folder: Path, name: str) -> ModelConfig:
    tensor = {"x": TensorConfig("f4", [-1, 4])}
    return ModelConfig(
        name=name, backend="python", file="bad.py", directory=str(folder), inputs=tensor, outputs=tensor
    )


async def test_a_worker_that_dies_while_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    error = await failing(file_model(tmp_path, "deadly"))
    assert isinstance(error, WorkerStartError)
    assert "SIGKILL" in str(error)


def test_models_are_there_and_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Server([])
    with pytest.raises(ValueError, match="scale version 1 is there twice"):
        Server([Scale(), Scale()])


async def test_a_group_that_fails_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug outside of any connection: the error comes out as it is."""

    async def broken(self: object, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ConnectionGroup, "run", broken)
    assert isinstance(await failing(Scale()), ZeroDivisionError)
