"""What a server costs while it does nothing: memory, memory of a connection, wake-ups."""

from __future__ import annotations

from typing import Final

import trio

from trioserve_tools.idle_connections import affordable, idle_connections
from trioserve_tools.process_figures import descendants, rss_nbytes, wakeups, wakeups_since
from trioserve_tools.server_process import server_process
from trioserve_tools.targets import Target

from ._figures import Figure, PartResult
from ._measure import Spread
from ._scenarios import Setting
from ._subjects import SERVED

CONNECTIONS: Final = 10_000
IDLE_S: Final = 3.0
SETTLE_S: Final = 1.0


async def measure_memory(setting: Setting) -> PartResult:
    """Starts a server of a model of 200 KB and opens connections to it, in each round anew."""
    rounds = [await _round(setting) for _ in range(setting.rounds)]
    rss, each, wakes = (Spread([values[index] for values in rounds]) for index in range(3))
    count = affordable(CONNECTIONS)
    return PartResult(
        "memory",
        "at rest",
        [
            Figure("memory: resident, all processes", "MB", Target("<=", 120), rss),
            Figure(f"memory: each of {count:,} idle connections", "KiB", Target("<=", 32), each),
            Figure("memory: wake-ups, idle", "1/s", Target("<=", 0), wakes),
        ],
    )


async def _round(setting: Setting) -> tuple[float, float, float]:
    """Resident memory in MB, memory of a connection in KiB, wake-ups a second with all of them open."""
    count = affordable(CONNECTIONS)
    async with server_process(SERVED / "w1.py") as server:
        await trio.sleep(SETTLE_S)
        processes = [server.pid, *descendants(server.pid)]
        resident = [rss_nbytes(pid) for pid in processes]
        with idle_connections(server.port, count, "w1"):
            await trio.sleep(SETTLE_S)
            each = (rss_nbytes(server.pid) - resident[0]) / 1024 / count
            before = wakeups(processes)
            await trio.sleep(IDLE_S)
            wakes = wakeups_since(before, wakeups(processes)) / IDLE_S
        await server.end()
    parts = ", ".join(f"{nbytes / 1e6:.0f}" for nbytes in resident)
    setting.progress(f"resident {parts} MB, {each:.1f} KiB a connection, {wakes:.1f} wake-ups a second")
    return sum(resident) / 1e6, each, wakes
