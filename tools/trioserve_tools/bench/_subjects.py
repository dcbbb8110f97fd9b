"""What is measured: servers in processes of their own, on free ports of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from trioserve_tools.process_figures import cpu_ns, descendants
from trioserve_tools.server_process import server_process

from ._plan import Plan, fixed_plan, frames_plan, http_plan

FOLDER: Final = Path(__file__).parent
SERVED: Final = FOLDER / "served"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05
ONE_THREAD: Final = {
    f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR")
}


class SubjectFailed(Exception):
    """A server that is to be measured did not start."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that is up."""

    port: int
    plan: Plan
    pid: int

    def cpu_ns(self) -> dict[str, int]:
        """CPU time used so far by its first process (`front`) and by all others of it together (`workers`)."""
        return {"front": cpu_ns(self.pid), "workers": sum(map(cpu_ns, descendants(self.pid)))}


Starter = Callable[[], AbstractAsyncContextManager[Subject]]
"""Starts a subject, for the time of a context."""


def trioserve(work: str) -> Starter:
    """The server, with a workload as its model."""

    @asynccontextmanager
    async def start() -> AsyncIterator[Subject]:
        async with server_process(SERVED / f"{work}.py") as server:
            yield Subject(server.port, frames_plan(work), server.pid)
            await server.end()

    return start


def bare(kind: str, work: str) -> Starter:
    """A baseline: `echo` or `reflector`, with messages as long as a workload's."""
    plan = fixed_plan(work) if kind == "echo" else frames_plan(work, compared=False)

    @asynccontextmanager
    async def start() -> AsyncIterator[Subject]:
        command = [sys.executable, "-m", "trioserve_tools.bench.baselines", kind]
        command += [str(plan.requests.shape[1]), str(plan.reply_nbytes)]
        pipe = subprocess.PIPE
        async with _process(command, stdin=pipe, stdout=pipe) as process:
            if process.stdin is None or process.stdout is None:
                raise AssertionError("a process without the pipes that were asked for: this is a bug")
            with trio.fail_after(START_TIMEOUT_S):
                line = await process.stdout.receive_some()
            if not line:
                raise SubjectFailed(f"the bare {kind} did not start")
            yield Subject(int(line), plan, process.pid)
            await process.stdin.aclose()
            with trio.fail_after(STOP_TIMEOUT_S):
                await process.wait()

    return start


def mosec(work: str, python: str) -> Starter:
    """Mosec, a model server in Rust and Python.

    Args:
        work: A key of `WORKS`.
        python: Interpreter of an environment that has mosec and numpy.
    """

    @asynccontextmanager
    async def start() -> AsyncIterator[Subject]:
        port, plan = _free_port(), http_plan(work, "/inference")
        command = [python, str(FOLDER / "mosec_peer.py"), "--address", "127.0.0.1", "--port", str(port)]
        env = {"TRIOSERVE_BENCH_WORK": work}
        quiet = subprocess.DEVNULL
        async with _process(command, env=env, stdout=quiet, stderr=quiet) as process:
            await _wait_for_answer(port, process, plan.requests[0].tobytes())
            yield Subject(port, plan, process.pid)
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_TIMEOUT_S):
                await process.wait()

    return start


@asynccontextmanager
async def _process(
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> AsyncIterator[trio.Process]:
    """A process that is killed, with all its children, if it still runs when the context ends."""
    path = os.pathsep.join(entry for entry in sys.path if entry and "site-packages" not in entry)
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path, **(env or {})}
    process = await trio.lowlevel.open_process(
        command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            for pid in [*descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            with trio.move_on_after(STOP_TIMEOUT_S, shield=True):
                await process.wait()


def _free_port() -> int:
    """A port for a server that cannot say which one it took."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def _wait_for_answer(port: int, process: trio.Process, request: bytes) -> None:
    """Returns when an HTTP server answers a request as it should."""
    with trio.move_on_after(START_TIMEOUT_S):
        while not await _answers(port, request):
            if process.returncode is not None:
                break
            await trio.sleep(POLL_S)
        else:
            return
    raise SubjectFailed("mosec did not start")


async def _answers(port: int, request: bytes) -> bool:
    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            return (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
