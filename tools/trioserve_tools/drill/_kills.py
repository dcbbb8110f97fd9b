"""Processes that end while they are needed: an executor, the server that is told to stop, the front itself."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import trio

from trioserve_protocol import ErrorCode
from trioserve_tools.process_figures import descendants, is_alive, open_fds
from trioserve_tools.server_process import ServerProcess, server_process

from ._drill import SERVED, Field, Finding, none_of, options
from ._ledger import Ledger
from ._observe import POLL_S, leaks
from ._traffic import LINKS, traffic
from ._until import until
from ._wire import wire

RATE: Final = 5_000.0
CAPACITY: Final = 200_000
BEFORE_S: Final = (0.2, 0.5)
"""Time under load before the blow, at least and at most."""

RECOVERY_S: Final = 10.0
"""Longest that is waited for the first good reply after a kill."""

AFTERWARDS_S: Final = 0.2
"""Load that goes on once the server is back."""

ANSWER_S: Final = 5.0
"""Longest that is waited for the last replies; more than any deadline on the wire."""

ORPHAN_S: Final = 5.0
SHARED: Final = Path("/dev/shm")  # noqa: S108  nothing is written there: that is what is looked at


START_S: Final = 30.0
"""Longest that is waited for a spare."""


# ---------------------------------------------------------------- kill -9 and SIGSTOP of the executor


@dataclass(frozen=True, slots=True)
class Blow:
    """What is done to an executor, and how soon that must be over."""

    signal: signal.Signals
    settings: Sequence[str] = ()
    """`KEY=VALUE` of the server's configuration."""

    error_ms: float = 100
    """Longest until those are answered that cannot be served, milliseconds."""

    first_ok_s: float = 1
    """Longest until a request that is sent afterwards is served, seconds."""


KILL: Final = Blow(signal.SIGKILL)
KILL_WITH_SPARE: Final = Blow(signal.SIGKILL, ("workers.spare=1",), first_ok_s=0.1)
HANG: Final = Blow(signal.SIGSTOP, error_ms=1_100, first_ok_s=2.1)
"""The watchdog waits a second."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of one killed executor's requests."""

    ledger: Ledger
    error_latencies_ms: Sequence[float]
    """Of each request that got an error that says to try again: from the kill, or from its sending if that was
    later, to the error."""

    expired: int
    """Requests that waited for the new executor until their deadline passed."""

    first_ok_s: float
    """From the kill to the first good reply to a request sent after it."""

    untyped: int
    """Errors that neither say to try again nor that a deadline has passed."""

    leaked: int


async def executor_kill(field: Field) -> list[Finding]:
    """Fresh servers under load, whose executor is killed."""
    return await _strike_all(field, KILL)


async def spare_kill(field: Field) -> list[Finding]:
    """The same with a second executor that is ready to take over."""
    return await _strike_all(field, KILL_WITH_SPARE)


async def executor_hang(field: Field) -> list[Finding]:
    """Fresh servers under load, whose executor is stopped and never continued."""
    return await _strike_all(field, HANG)


async def _strike_all(field: Field, blow: Blow) -> list[Finding]:
    rng = field.rng()
    kills = []
    for number in range(field.count):
        kills.append(await _strike_executor(rng, blow))
        field.progress(
            f"kill {number + 1} of {field.count}: first OK after {kills[-1].first_ok_s:.2f} s, "
            f"{kills[-1].ledger.statuses()}"
        )
    latencies_ms = [value for kill in kills for value in kill.error_latencies_ms]
    return [
        none_of("unanswered", sum(kill.ledger.unanswered for kill in kills)),
        none_of("duplicate", sum(kill.ledger.duplicates for kill in kills)),
        none_of("wrong payload", sum(kill.ledger.wrong for kill in kills)),
        none_of("error of another kind", sum(kill.untyped for kill in kills)),
        none_of("leaked", sum(kill.leaked for kill in kills)),
        field.timing("error p99", float(np.quantile([0, *latencies_ms], 0.99)), blow.error_ms, "ms"),
        field.timing("first OK, slowest", max(kill.first_ok_s for kill in kills), blow.first_ok_s, "s"),
        Finding("kills", len(kills)),
        Finding("requests", sum(kill.ledger.issued.stop - 1 for kill in kills)),
        Finding("told to try again", sum(len(kill.error_latencies_ms) for kill in kills)),
        Finding("expired", sum(kill.expired for kill in kills)),
    ]


async def _strike_executor(rng: random.Random, blow: Blow) -> Kill:
    async with server_process(SERVED, *options(*blow.settings)) as server:
        executor, fds = await _executor_of(server, spare=bool(blow.settings))
        async with traffic(server.port, RATE, rng, CAPACITY) as load:
            await trio.sleep(rng.uniform(*BEFORE_S))
            os.kill(executor, blow.signal)
            killed_ns = time.monotonic_ns()
            first_ok_s = await _first_ok_s(load.ledger, killed_ns)
            await trio.sleep(AFTERWARDS_S)
            await load.settle(ANSWER_S)
        leaked = await leaks(server, fds)
        await server.end()
    return _judged(load.ledger, killed_ns, first_ok_s, leaked)


async def _executor_of(server: ServerProcess, *, spare: bool) -> tuple[int, int]:
    """The process id of the executor, once its spare is ready too if it has one; and the open descriptors of the front.

    The descriptors are counted while one connection is open, as `leaks` does.
    """
    async with wire(server.port) as asking:
        with trio.fail_after(START_S):
            while True:
                (executor,) = (await asking.admin("statistics"))["workers"]
                if executor["spare_pid"] or not spare:
                    return int(executor["pid"]), open_fds(server.pid)
                await trio.sleep(POLL_S)


async def _first_ok_s(ledger: Ledger, killed_ns: int) -> float:
    """Waits for the first good reply to a request that was sent after the kill; infinite if there is none."""

    def good() -> npt.NDArray[np.bool_]:
        return np.asarray((ledger.sent_ns > killed_ns) & (ledger.status == ErrorCode.OK))

    if not await until(lambda: bool(good().any()), within_s=RECOVERY_S):
        return float("inf")
    return float(ledger.ended_ns[good()].min() - killed_ns) / 1e9


def _judged(ledger: Ledger, killed_ns: int, first_ok_s: float, leaked: int) -> Kill:
    retryable = np.isin(ledger.status, [int(code) for code in ErrorCode if code.retryable])
    since_ns = np.maximum(ledger.sent_ns[retryable], killed_ns)
    latencies_ms = ((ledger.ended_ns[retryable] - since_ns) / 1e6).tolist()
    expired = int((ledger.status & 0xFF == ErrorCode.DEADLINE_EXCEEDED).sum())
    good = ledger.count(ErrorCode.OK) + ledger.unanswered
    untyped = ledger.issued.stop - 1 - good - len(latencies_ms) - expired
    return Kill(ledger, latencies_ms, expired, first_ok_s, untyped, leaked)


# ---------------------------------------------------------------- SIGTERM


async def sigterm(field: Field) -> list[Finding]:
    """Fresh servers under load that are told to stop."""
    rng = field.rng()
    failed = lost = wrong = returned = requests = 0
    slowest_s = 0.0
    for number in range(field.count):
        async with server_process(SERVED) as server:
            ledger, taken, seconds = await _stop_under_load(server, rng)
        position = ledger.order[ledger.issued]
        within = position <= taken[ledger.links[ledger.issued]]
        status = ledger.status[ledger.issued]
        failed += int((within & (status != ErrorCode.OK)).sum())
        lost += int((taken < 0).sum())
        wrong += ledger.wrong + ledger.duplicates
        returned += int((~within).sum())
        requests += len(status)
        slowest_s = max(slowest_s, seconds)
        field.progress(f"stop {number + 1} of {field.count}: {seconds:.2f} s, {ledger.statuses()}")
    return [
        none_of("taken and not answered with a result", failed),
        none_of("connections closed without GOAWAY", lost),
        none_of("duplicate or wrong", wrong),
        field.timing("time to end, slowest", slowest_s, 2, "s"),
        Finding("stops", field.count),
        Finding("requests", requests),
        Finding("handed back as never executed", returned),
    ]


async def _stop_under_load(
    server: ServerProcess, rng: random.Random
) -> tuple[Ledger, np.ndarray[tuple[int], np.dtype[np.int64]], float]:
    """Stops a server.

    Returns:
        The ledger; how many requests the server said it had taken on each link (-1: it said nothing); the seconds
        until it had ended.
    """
    async with traffic(server.port, RATE, rng, CAPACITY) as load:
        await trio.sleep(rng.uniform(*BEFORE_S))
        told_s = trio.current_time()
        server.process.terminate()
        await server.ended()
        seconds = trio.current_time() - told_s
        for link in load.links:
            with trio.fail_after(ANSWER_S):
                await link.closed.wait()
    taken = np.full(LINKS, -1, np.int64)
    for link in load.links:
        if link.taken is not None:
            taken[link.number] = link.taken
    return load.ledger, taken, seconds


# ---------------------------------------------------------------- kill -9 of the front


async def front_kill(field: Field) -> list[Finding]:
    """Fresh servers under load whose front process is killed: the workers must not stay behind."""
    rng = field.rng()
    orphans = left = 0
    slowest_s = 0.0
    for _ in range(field.count):
        shared = _files_in(SHARED)
        async with _server_with_folder() as (server, folder), traffic(server.port, RATE, rng, CAPACITY):
            await trio.sleep(rng.uniform(*BEFORE_S))
            workers = descendants(server.pid)
            server.process.kill()
            killed_s = trio.current_time()
            await until(lambda: not any(map(is_alive, workers)), within_s=ORPHAN_S)  # noqa: B023  ends here
            orphans += sum(map(is_alive, workers))
            slowest_s = max(slowest_s, trio.current_time() - killed_s)
            left += len(_files_in(folder)) + len(_files_in(SHARED) - shared)
    return [
        none_of("orphans", orphans),
        none_of("files left behind", left),
        field.timing("last worker gone, slowest", slowest_s, 1, "s"),
        Finding("kills", field.count),
    ]


def _files_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@asynccontextmanager
async def _server_with_folder() -> AsyncIterator[tuple[ServerProcess, Path]]:
    """A server, and the folder that it has for temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        async with server_process(SERVED, temporary=folder) as server:
            yield server, Path(folder)
