"""How a server is while something is done to it: what it still holds, and what others feel of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from trioserve_tools.process_figures import open_fds
from trioserve_tools.server_process import ServerProcess

from ._beside import beside
from ._wire import Wire, wire

SETTLE_S: Final = 5.0
"""Longest that a server may take to get everything back once nobody wants anything of it any more."""

POLL_S: Final = 0.05


async def leaks(server: ServerProcess, fds: int) -> int:
    """Waits until a server holds nothing any more, and counts what it still holds after `SETTLE_S`.

    Args:
        server: Nobody but the caller may be using it.
        fds: Descriptors that its front had open before, see `fds_of`.

    Returns:
        Requests in flight, slots, permits, queued bytes, connections and descriptors that did not come back, added
        up: 0 if all did.
    """
    async with wire(server.port) as asking:
        end_s = trio.current_time() + SETTLE_S
        while True:
            left = await _held(asking, server, fds)
            if not left or trio.current_time() > end_s:
                return left
            await trio.sleep(POLL_S)


async def fds_of(server: ServerProcess) -> int:
    """Descriptors of a server's front while one connection is open."""
    async with wire(server.port) as asking:
        await asking.admin("health")
        return open_fds(server.pid)


async def _held(asking: Wire, server: ServerProcess, fds: int) -> int:
    statistics = await asking.admin("statistics")
    held = statistics["queued_nbytes"] + abs(statistics["sessions"] - 1)
    for model in statistics["models"]:
        held += (
            model["in_flight"] + model["queued_rows"] + model["permits"]["rows"] + model["slots"]["leased"]
        )
    return int(held) + abs(open_fds(server.pid) - fds)


@dataclass(frozen=True, slots=True)
class Felt:
    """What a well-behaved client felt."""

    latencies_us: Sequence[float]
    failures: int
    """Replies that were not the right answer, and a connection that broke."""

    @property
    def p99_us(self) -> float:
        """99 of 100 requests took no longer."""
        return float(np.quantile(self.latencies_us, 0.99))


@dataclass
class Neighbour:
    """A well-behaved client; once it has gone, what it felt."""

    felt: Felt = Felt((float("nan"),), 1)


@asynccontextmanager
async def neighbour(port: int) -> AsyncIterator[Neighbour]:
    """A client that sends one request at a time for as long as the context is open.

    It is a process of its own, so that it feels the server and not what this program does to it.
    """
    living = Neighbour()
    async with beside("trioserve_tools.drill.neighbour", str(port)) as program:
        yield living
    living.felt = Felt(**program.said)


async def undisturbed_p99_us(port: int, seconds: float) -> float:
    """What a neighbour's p99 is while nothing else happens."""
    async with neighbour(port) as alone:
        await trio.sleep(seconds)
    return alone.felt.p99_us
