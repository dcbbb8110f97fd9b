"""Clients that ask for much and are gone: whatever way they go, the next one is served, and nothing stays behind."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
import trio

from trioserve_protocol import FrameType, cancel_frame

from ._drill import Field, Finding, none_of
from ._models import Sleeper, sleepers
from ._observe import fds_of, leaks
from ._wire import Wire, infer, wire

MANY: Final = 64
NEXT_S: Final = 2.0
"""Longest that the next client may wait for its answer: a batcher that is stuck never gives it."""

FIXED_MS: Final = 2.0
PER_ROW_MS: Final = 0.05
MAX_ROWS: Final = 16
"""Of a batch: some of the requests run, some are with the executor, and some wait, when their client goes."""


async def cancel_storm(field: Field) -> list[Finding]:
    """Sends 64 requests, goes, and sends one more, again and again, in each of three ways to go."""
    rng = field.rng()
    findings: list[Finding] = []
    slowest_s = 0.0
    async with sleepers(Sleeper("sleeper", FIXED_MS, PER_ROW_MS, max_rows=MAX_ROWS)) as server:
        fds = await fds_of(server)
        for name, leave in WAYS.items():
            stuck = unserved = 0
            for _ in range(field.count):
                unserved += await _go(server.port, leave, rng)
                took_s = await _next(server.port)
                stuck += took_s == float("inf")
                slowest_s = max(slowest_s, took_s)
            leaked = await leaks(server, fds)
            findings += [none_of(f"{name}: stuck", stuck), none_of(f"{name}: leaked", leaked)]
            findings += [none_of(f"{name}: not served", unserved)] if leave is _finish else []
            field.progress(f"{name}: {field.count} times")
    return [
        *findings,
        Finding("next answer, slowest", slowest_s * 1000, unit="ms"),
        Finding("times, each way", field.count),
    ]


async def _go(port: int, leave: Callable[[Wire, random.Random], Awaitable[int]], rng: random.Random) -> int:
    """One client that goes; returns how many replies it was owed and did not get."""
    async with wire(port, "sleeper") as connection:
        await connection.send(b"".join(_request(rid) for rid in range(1, MANY + 1)))
        return await leave(connection, rng)


async def _cancel(connection: Wire, rng: random.Random) -> int:
    """CANCEL of all, at once or while some run, and close."""
    await trio.sleep(rng.random() * FIXED_MS / 1e3)
    await connection.send(cancel_frame(0))
    return 0


async def _reset(connection: Wire, rng: random.Random) -> int:
    await trio.sleep(rng.random() * FIXED_MS / 1e3)
    connection.reset()
    return 0


async def _finish(connection: Wire, rng: random.Random) -> int:
    """Closes its side only: it is still owed its answers."""
    del rng
    await connection.finish_sending()
    results = 0
    with trio.move_on_after(NEXT_S):
        while (reply := await connection.receive()) is not None:
            results += reply.kind == FrameType.RESULT
    return MANY - results


WAYS: Final = {"CANCEL": _cancel, "RST": _reset, "FIN": _finish}


async def _next(port: int) -> float:
    """How long the next client waits for its answer, in seconds; infinitely if it gets none."""
    began_s = trio.current_time()
    with trio.move_on_after(NEXT_S):
        async with wire(port, "sleeper") as connection:
            await connection.send(_request(1))
            if (await connection.expect()).kind == FrameType.RESULT:
                return trio.current_time() - began_s
    return float("inf")


def _request(rid: int) -> bytes:
    return infer(rid, np.full(128, rid, np.float32).tobytes())
