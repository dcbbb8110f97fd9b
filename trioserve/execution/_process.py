"""One worker process: started with two pairs, watched by end of stream, ended with grace and then for certain."""

from __future__ import annotations

import os
import signal
import site
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import trio

import trioserve
import trioserve_protocol
from trioserve.execution._descriptors import MAX_MESSAGE_NBYTES, pack_echo
from trioserve.execution._messages import (
    MAX_CONTROL_NBYTES,
    Failed,
    ModelReady,
    ModelStart,
    Skipped,
    Start,
    Stop,
    decode_from_worker,
    encode_control,
)
from trioserve.execution._priority import PATIENCE_S, lower, raise_again
from trioserve.execution._spec import WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trioserve.execution._spec import WorkerSpec

logger = structlog.get_logger(__name__)

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Libraries read these once, when they are loaded: they must be set before the worker's first import."""

MAX_TITLE: Final = 200
"""Characters of its models' names that the command line of a worker has."""

HOP_ROUNDS: Final = 16
"""Round trips that the median hop is taken of."""

HOP_LIMIT_S: Final = 5.0
"""Longest that one of them may take, seconds."""

REAP_LIMIT_S: Final = 5.0
"""How long to wait for a killed process. Only one stuck in the kernel takes longer, and nothing here could end that."""


@dataclass(slots=True)
class WorkerProcess:
    """A started worker, from its first message to its reaping.

    Ownership:
        Owns the process and the control pair's end; `stop` ends both. `data` is owned until it is handed to a link.
    """

    process: trio.Process
    control: trio.socket.SocketType
    data: socket.socket
    epoch: int
    orders: socket.socket | None = None
    """The same end as `control`, for what is sent without waiting."""

    lowered: bool = False
    """Whether it runs only when nobody else wants to, until it is ready."""

    on_skipped: Callable[[int], None] | None = None
    """Told which batches the worker will not begin."""

    killed_because: str = ""
    """Why the server has killed it; empty while it has not."""

    was_stopped: bool = False
    """Whether somebody else had stopped it by a signal before."""

    _killed: trio.Event = field(default_factory=trio.Event)

    async def ready(self, timeout_s: float) -> tuple[ModelReady, ...]:
        """Wait until the worker serves.

        Raises:
            WorkerStartError: It ended, failed, or took longer than `timeout_s`.
        """
        with trio.move_on_after(timeout_s):
            data = await self._first_message()
            self._raise_again()
            if not data:
                raise WorkerStartError(f"the worker ended while it started: {await self.reaped()}")
            try:
                message = decode_from_worker(data)
            except msgspec.MsgspecError as error:
                raise WorkerStartError(f"the worker sent an unknown message: {error}") from error
            if isinstance(message, Failed):
                raise WorkerStartError(f"the worker cannot serve: {message.message}")
            if isinstance(message, Skipped):
                raise WorkerStartError("the worker sent an unknown message: it has no batch to skip")
            return tuple(message.models)
        raise WorkerStartError(f"the worker was not ready within {timeout_s:g} s")

    def _raise_again(self) -> None:
        if self.lowered:
            raise_again(self.process.pid)
            self.lowered = False

    async def _first_message(self) -> bytes:
        """What the worker says first; if that takes long, it gets its share of the processor."""
        if self.lowered:
            with trio.move_on_after(PATIENCE_S):
                return await self._received()
            self._raise_again()
        return await self._received()

    async def _received(self) -> bytes:
        try:
            return await self.control.recv(MAX_CONTROL_NBYTES + 1)
        except ConnectionResetError:  # it died with what it was told unread
            return b""

    async def measure_hop(self) -> int:
        """Median round trip of an empty message, nanoseconds.

        Raises:
            WorkerStartError: The worker ended, does not answer, or answers something else.
        """
        took = []
        for number in range(HOP_ROUNDS):
            before = time.monotonic_ns()
            with trio.move_on_after(HOP_LIMIT_S) as limit:
                await self._echo(pack_echo(self.epoch, number))
            if limit.cancelled_caught:
                raise WorkerStartError("the worker does not answer")
            took.append(time.monotonic_ns() - before)
        return int(statistics.median(took))

    async def _echo(self, message: bytes) -> None:
        try:
            self.data.send(message)
            await trio.lowlevel.wait_readable(self.data)
            answer = self.data.recv(MAX_MESSAGE_NBYTES)
        except OSError as error:
            raise WorkerStartError(f"the worker ended while it started: {error.strerror}") from error
        if answer != message:
            raise WorkerStartError("the worker ended while it started, or answers what it was not asked")

    def kill(self, why: str) -> None:
        """End the worker at once.

        Args:
            why: In words for the log.
        """
        if not self.killed_because:
            self.killed_because = why
            self.was_stopped = is_stopped(self.process.pid)
        self.process.kill()
        self._killed.set()

    async def ending(self) -> None:
        """Wait until the worker serves no more: it has ended, closed its control end, or been killed by `kill`.

        The end of its control stream is not enough: a child that a model has forked may hold that open. Nor is the end
        of the process: one that is stuck in the kernel survives its killing.
        """
        async with trio.open_nursery() as nursery:
            for wait in (self._control_end, self.process.wait, self._killed.wait):
                nursery.start_soon(self._cancel_after, nursery.cancel_scope, wait)

    async def _cancel_after(self, scope: trio.CancelScope, wait: Callable[[], Awaitable[object]]) -> None:
        await wait()
        scope.cancel()

    async def _control_end(self) -> None:
        try:
            while data := await self.control.recv(MAX_CONTROL_NBYTES + 1):
                self._take(data)
        except OSError as error:
            logger.debug("worker_control_reset", pid=self.process.pid, error=error.strerror)

    def _take(self, data: bytes) -> None:
        """A message of a worker that serves."""
        with suppress(msgspec.MsgspecError):
            message = decode_from_worker(data)
            if isinstance(message, Skipped) and self.on_skipped is not None:
                self.on_skipped(message.seq)
                return
        logger.warning("worker_message_ignored", pid=self.process.pid)

    async def reaped(self) -> str:
        """Make sure that the process has ended: one that has closed its control end without ending is killed."""
        with trio.move_on_after(REAP_LIMIT_S):
            return _ending(await self.process.wait())
        self.process.kill()
        return f"{_ending(await self.process.wait())} after it had closed its end"

    async def stop(self, grace_s: float) -> None:
        """Tell the worker to finish what it holds, wait for that, then kill it. Idempotent.

        Cancellation:
            Call it under a shield; it is bounded by `grace_s` and the reaping limit.
        """
        try:
            with trio.move_on_after(grace_s):
                # It may have ended already; waiting is all that is left to do then.
                with suppress(OSError):
                    await self.control.send(encode_control(Stop()))
                await self.process.wait()
            if self.process.returncode is None:
                logger.warning("worker_killed", pid=self.process.pid, grace_s=grace_s)
                self.process.kill()
                with trio.move_on_after(REAP_LIMIT_S):
                    await self.process.wait()
        finally:
            self.control.close()


async def start_process(spec: WorkerSpec, epoch: int) -> WorkerProcess:
    """Start a worker and tell it what to serve.

    Raises:
        WorkerStartError: The system refuses a process, or the configuration does not fit in a message.
    """
    control, control_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    data, data_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    data.settimeout(0)
    with ExitStack() as undo:
        undo.callback(control.close)
        undo.callback(data.close)
        with control_child, data_child:
            message, process = await _spawn(spec, epoch, (control_child.fileno(), data_child.fileno()))
        started = WorkerProcess(process, trio.socket.from_stdlib_socket(control), data, epoch, control)
        started.lowered = spec.gently and epoch == 1 and lower(process.pid)
        try:
            await started.control.send(message)
        except OSError:
            logger.debug("worker_ended_before_start", pid=process.pid)
        except BaseException:
            with trio.move_on_after(REAP_LIMIT_S, shield=True):
                await started.stop(0)
            raise
        undo.pop_all()
    return started


async def _spawn(spec: WorkerSpec, epoch: int, ends: tuple[int, int]) -> tuple[bytes, trio.Process]:
    """Start the process with its two ends; returns also what it is to be told."""
    try:
        message = encode_control(_start_message(spec, epoch))
        process = await trio.lowlevel.open_process(
            # -P: the working directory is not searched for modules; the start message says where to look.
            [sys.executable, "-P", "-m", "trioserve.execution.worker", *map(str, ends), title_of(spec)],
            pass_fds=[*ends, *(model.arena.fd for model in spec.models)],
            env=worker_environment(spec),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, ValueError) as error:
        raise WorkerStartError(f"no worker process: {error}") from error
    return message, process


def title_of(spec: WorkerSpec) -> str:
    """What a process list shows of a worker: `executor:first,second`."""
    names = ",".join([model.config.name for model in spec.models])
    return f"{spec.kind}:{names}" if len(names) <= MAX_TITLE else f"{spec.kind}:{names[:MAX_TITLE]}..."


def worker_environment(spec: WorkerSpec) -> dict[str, str]:
    """The environment of a worker: threads as its models say, and this same `trioserve`, also from a source tree."""
    environment = dict(os.environ)
    threads = str(max((model.config.threads for model in spec.models), default=1))
    environment.update(dict.fromkeys(THREAD_VARIABLES, threads))
    environment["TOKENIZERS_PARALLELISM"] = "true" if threads != "1" else "false"
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    roots = [str(Path(str(package.__file__)).parents[1]) for package in (trioserve, trioserve_protocol)]
    # Never site-packages itself: on PYTHONPATH it would come before the standard library.
    extra = [root for root in dict.fromkeys(roots) if root not in installed]
    paths = [*extra, *filter(None, [environment.get("PYTHONPATH")])]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _start_message(spec: WorkerSpec, epoch: int) -> Start:
    models = [
        ModelStart(model.config, model.layout, model.arena.fd, model.arena.nbytes) for model in spec.models
    ]
    return Start(epoch, spec.kind, list(sys.path), models)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still because of SIGSTOP or the like, or of a debugger."""
    try:
        # The name, in parentheses, may have any characters in it.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"T", "t"}


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"ended with status {returncode}"
