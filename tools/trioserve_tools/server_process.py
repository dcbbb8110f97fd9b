"""A server in a process of its own: started, waited for, stopped as an operator would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0


class ServerFailed(Exception):
    """A server did not start or end as it must. `str()` says how, with the last lines of its log."""


@dataclass
class ServerLog:
    """What a server says on standard error, one JSON object a line."""

    address: str = ""
    """URL of the server, once it has said that it is ready."""

    ready: trio.Event = field(default_factory=trio.Event)
    """Set when the server is ready, or when it has closed its log without ever being."""

    tail: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    """The last lines, for when something goes wrong."""

    def line(self, text: str) -> None:
        """Takes in a line."""
        self.tail.append(text)
        try:
            event = json.loads(text)
        except ValueError:
            return
        if isinstance(event, dict) and event.get("event") == "server_ready":
            self.address = event["addresses"][0]
            self.ready.set()

    async def follow(self, stream: trio.abc.ReceiveStream) -> None:
        """Reads until the server closes its log. One that nobody reads would stop the server when the pipe is full."""
        rest = b""
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.line(line.decode(errors="replace"))
        self.ready.set()


@dataclass(frozen=True)
class ServerProcess:
    """A server that is up, and its log."""

    url: str
    """Where it listens."""

    process: trio.Process
    """The front process; its children are the workers."""

    log: ServerLog
    """What it has said."""

    @property
    def pid(self) -> int:
        """Process id of the front."""
        return self.process.pid

    @property
    def port(self) -> int:
        """TCP port on this machine."""
        return int(self.url.rpartition(":")[2])

    async def end(self) -> None:
        """Tells the server to stop, unless it has ended already, and waits until it has.

        Raises:
            ServerFailed: It takes too long, or its status is not 0.
        """
        self.process.terminate()
        await self.ended()

    async def ended(self) -> None:
        """Waits until a server that has been told to stop has ended. Raises as `end` does."""
        process = self.process
        with trio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
        if process.returncode != 0:
            status = "still running" if process.returncode is None else f"status {process.returncode}"
            raise ServerFailed(
                _with_log(f"the server did not end as it should after SIGTERM ({status})", self.log)
            )


@asynccontextmanager
async def server_process(models: Path, *options: str, temporary: str = "") -> AsyncIterator[ServerProcess]:
    """Serves models on a free port of this machine. Leaving the context kills the server if it still runs.

    Args:
        models: A model repository, model folder or Python file.
        *options: More of `trioserve serve`.
        temporary: Folder for its temporary files; empty for that of this process.

    Raises:
        ServerFailed: It does not become ready.
    """
    command = [sys.executable, "-m", "trioserve.cli", "serve", "--models", str(models)]
    command += ["--port", "0", "--log-format", "json", *options]
    # Imports must find there what they find here, however this process came by its path.
    # What an earlier run has learnt must not decide what is measured in this one; and all load comes from one address.
    env = {
        "TRIOSERVE_STATE_DIR": "",
        "TRIOSERVE_ADMIN__UNIX_PATH": "",
        "TRIOSERVE_LIMITS__MAX_CONNECTIONS_PER_ADDRESS": "10000",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    if temporary:
        env["TMPDIR"] = temporary
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE, env=env)
    if process.stderr is None:
        raise AssertionError("a process without the pipe that was asked for: this is a bug")
    log = ServerLog()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.follow, process.stderr)
            with trio.move_on_after(START_TIMEOUT_S):
                await log.ready.wait()
            if not log.address:
                raise ServerFailed(_with_log("the server did not become ready", log))
            yield ServerProcess(log.address, process, log)
            nursery.cancel_scope.cancel()
    finally:
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(KILL_TIMEOUT_S, shield=True):
                await process.wait()


@asynccontextmanager
async def running_server(models: Path) -> AsyncIterator[tuple[str, int]]:
    """Serves a model repository for as long as the context is open, then stops the server as an operator would.

    Yields:
        URL and process id of a server that is ready.

    Raises:
        ServerFailed: It does not become ready, or does not end with status 0 when it is told to.
    """
    async with server_process(models) as server:
        yield server.url, server.pid
        await server.end()


def _with_log(message: str, log: ServerLog) -> str:
    return "\n".join([f"{message}; its last words:", *(f"  {line}" for line in log.tail)])
