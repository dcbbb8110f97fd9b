"""Clients that want to wear the server out: requests taken back at once, and connections that come and go."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import trio

from trioserve_protocol import FrameType, cancel_frame, ping_frame

from ._drill import Field, Finding, none_of
from ._ledger import input_rows
from ._observe import fds_of, leaks, neighbour, undisturbed_p99_us
from ._parser import in_parallel
from ._wire import Wire, infer, wire

PAIRS_PER_WRITE: Final = 32
PATIENCE_S: Final = 10.0


# ---------------------------------------------------------------- INFER and CANCEL in a loop


async def cancel_flood(field: Field) -> list[Finding]:
    """One connection sends INFER and CANCEL as fast as it can, with a neighbour beside it."""
    server = field.server
    fds = await fds_of(server)
    alone_us = await undisturbed_p99_us(server.port, 0.3 if field.quick else 3.0)
    ends = np.zeros(field.count + 1, np.int64)
    async with (
        neighbour(server.port) as victim,
        wire(server.port, "double") as connection,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_count_ends, connection, ends)
        for first in range(1, field.count + 1, PAIRS_PER_WRITE):
            rids = range(first, min(first + PAIRS_PER_WRITE, field.count + 1))
            await connection.send(b"".join(_pair(rid) for rid in rids))
    leaked = await leaks(server, fds)
    return [
        none_of("unanswered", int((ends[1:] == 0).sum())),
        none_of("answered twice", int((ends[1:] > 1).sum())),
        field.timing("neighbour's p99 over its p99 alone", victim.felt.p99_us / alone_us, 1.5, "x"),
        none_of("neighbour's failures", victim.felt.failures),
        none_of("leaked", leaked),
        Finding("requests taken back", field.count),
    ]


def _pair(rid: int) -> bytes:
    return infer(rid, input_rows(np.array([rid], np.uint64)).tobytes()) + cancel_frame(rid)


async def _count_ends(connection: Wire, ends: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Counts terminal frames by id until each has one, or none has come for a while."""
    left = len(ends) - 1
    while left:
        with trio.move_on_after(PATIENCE_S) as patience:
            reply = await connection.expect()
            left -= not ends[reply.rid]
            ends[reply.rid] += 1
        if patience.cancelled_caught:
            return


# ---------------------------------------------------------------- connections that come and go


async def disconnect_storm(field: Field) -> list[Finding]:
    """Connections that ask for something and are gone at any byte of it: reset, closed or half-closed."""
    server, rng = field.server, field.rng()
    fds = await fds_of(server)
    seeds = [rng.getrandbits(32) for _ in range(field.count)]
    unserved = 0

    async def one(seed: int) -> None:
        nonlocal unserved
        unserved += await _come_and_go(server.port, random.Random(seed))  # noqa: S311  for repeating, not hiding

    async with neighbour(server.port) as victim:
        await in_parallel(seeds, one)
    return [
        none_of("replies missing after a half-close", unserved),
        none_of("neighbour's failures", victim.felt.failures),
        none_of("leaked", await leaks(server, fds)),
        Finding("connections", field.count),
    ]


async def _come_and_go(port: int, rng: random.Random) -> int:
    """One connection; returns how many replies it was owed and did not get."""
    async with wire(port, "double") as connection:
        whole = rng.randrange(1, 40)
        rids = np.arange(1, whole + 1, dtype=np.uint64)
        frames = [infer(int(rid), row.tobytes()) for rid, row in zip(rids, input_rows(rids), strict=True)]
        rest = ping_frame() + infer(whole + 1, bytes(512))
        data = b"".join(frames) + rest[: rng.randrange(len(rest))]
        end = rng.choice(("reset", "close", "half-close"))
        if end == "half-close":
            return await _half_close(connection, data, whole)
        await connection.send(data[: rng.randrange(len(data) + 1)])
        await trio.sleep(rng.random() * 0.002)
        if end == "reset":
            connection.reset()
        return 0


async def _half_close(connection: Wire, data: bytes, whole: int) -> int:
    await connection.send(data)
    await connection.finish_sending()
    results = 0
    while (reply := await connection.receive()) is not None:
        results += reply.kind == FrameType.RESULT
    return whole - results
