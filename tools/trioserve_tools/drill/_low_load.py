"""What the batcher adds where there is little to do, and what it saves where clients come back or come in bursts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trioserve_protocol import HEADER_NBYTES
from trioserve_tools.server_process import ServerProcess

from ._beside import beside
from ._drill import Field, Finding, exactly, none_of
from ._models import Sleeper, sleeper_requests, sleepers, statistics_of
from ._paced import poisson, preambles, run_script
from ._script import Loop, Record, Schedule, Script, quantile

DEADLINE_MS: Final = 2000.0

# ---------------------------------------------------------------- nearly nothing to do

LOAD: Final = 0.1
"""Of what the model could do one request at a time."""


async def low_load(field: Field) -> list[Finding]:
    """A model that takes 5 ms + 0.2 ms a row, a tenth of the time: nobody is waited for.

    S(1) is what the server measured of the model in the same run: how late this machine wakes a sleeper is not the
    server's. A bare reflector, a process that answers with nothing computed, gets the same requests afterwards: that is
    what it takes here to wake one process that has slept for as long, and the server is two.
    """
    schedule = poisson([(LOAD / 0.0052, field.seconds)], 8, 16, field.rng())
    requests = sleeper_requests(DEADLINE_MS)
    async with sleepers(Sleeper("sleeper", 5, 0.2)) as server:
        before = await statistics_of(server.port, "sleeper")
        record = await run_script(Script(preambles("sleeper", 8), requests, schedule), server.port)
        after = await statistics_of(server.port, "sleeper")
    unread = [replace(request, expected=b"") for request in requests]
    sizes = map(str, (len(requests[0].frame), HEADER_NBYTES + 16))
    async with beside("trioserve_tools.bench.baselines", "reflector", *sizes) as reflector:
        bare = await run_script(Script(preambles("any", 8), unread, schedule), int(reflector.line))
    batches = after["batches"] - before["batches"]
    alone_ms = (after["compute_ns"] - before["compute_ns"]) / batches / 1e6
    p50_ms = quantile(record.latency_ms, 0.5)
    return [
        none_of("not answered, or wrong", _bad(record)),
        field.timing("p50 over S(1)", (p50_ms - alone_ms) * 1000, 200, "µs"),
        exactly("cut by the window", _cuts(after, "window") - _cuts(before, "window"), 0),
        Finding("a bare reflector's p50", quantile(bare.latency_ms, 0.5) * 1000, unit="µs"),
        Finding("S(1)", alone_ms, unit="ms"),
        Finding("requests", len(record)),
    ]


def _bad(record: Record) -> int:
    return int((~record.ok).sum()) + record.wrong + record.repeated


def _cuts(statistics: Mapping[str, Any], reason: str) -> int:
    return int(statistics["cut_reasons"][reason])


# ---------------------------------------------------------------- clients that come back

CLIENTS: Final = 8
THINK_S: Final = 0.000_2
WINDOWS_MS: Final = (0.5, 1.0, 2.0)
NO_WORSE: Final = 1.02
"""Two measurements of one thing differ by as much."""


async def closed_loop(field: Field) -> list[Finding]:
    """Eight clients that come back 0.2 ms after each answer, on 4 ms + 0.1 ms a row, under each policy."""
    shapes: dict[str, tuple[str, float | None]] = {"adaptive": ("adaptive", None), "greedy": ("greedy", None)}
    shapes |= {f"fixed-{window:g}": ("fixed", window) for window in WINDOWS_MS}
    models = [
        Sleeper(name, 4, 0.1, policy=policy, window_ms=window) for name, (policy, window) in shapes.items()
    ]
    means_ms: dict[str, float] = {}
    bad = 0
    async with sleepers(*models) as server:
        for model in models:
            script = Script(
                preambles(model.name, CLIENTS),
                sleeper_requests(DEADLINE_MS),
                Loop(field.seconds, think_s=THINK_S),
            )
            record = await run_script(script, server.port)
            bad += _bad(record)
            # What the first fifth is told by is still being learnt.
            settled = record.only(np.arange(len(record)) > len(record) // 5)
            means_ms[model.name] = float(settled.latency_ms.mean())
            field.progress(f"{model.name}: {means_ms[model.name]:.3f} ms")
    ours_ms = means_ms.pop("adaptive")
    best_ms = min(means_ms.values())
    return [
        none_of("not answered, or wrong", bad),
        field.timing("mean latency over greedy's", ours_ms / means_ms["greedy"], 0.62, "x"),
        field.timing("mean latency over the best fixed window's", ours_ms / best_ms, NO_WORSE, "x"),
        Finding("mean latency", ours_ms, unit="ms"),
        Finding("greedy", means_ms["greedy"], unit="ms"),
        Finding("best fixed window", best_ms, unit="ms"),
    ]


# ---------------------------------------------------------------- bursts

BURST: Final = 8
BURST_APART_S: Final = 0.000_1
BURST_EVERY_S: Final = 0.02


async def bursts(field: Field) -> list[Finding]:
    """Eight requests 0.1 ms apart every 20 ms, on a model that takes 5 ms whatever the batch."""
    means_ms: dict[str, float] = {}
    bad = 0
    async with sleepers(*(Sleeper(name, 5, 0, policy=name) for name in ("adaptive", "greedy"))) as server:
        for name in ("adaptive", "greedy"):
            record = await _run_bursts(server, name, field.seconds)
            bad += _bad(record)
            means_ms[name] = float(record.only(np.arange(len(record)) > len(record) // 5).latency_ms.mean())
    return [
        none_of("not answered, or wrong", bad),
        field.timing("mean latency over greedy's", means_ms["adaptive"] / means_ms["greedy"], 0.75, "x"),
        Finding("mean latency", means_ms["adaptive"], unit="ms"),
        Finding("greedy", means_ms["greedy"], unit="ms"),
    ]


async def _run_bursts(server: ServerProcess, name: str, seconds: float) -> Record:
    began_s = np.arange(0, seconds, BURST_EVERY_S)
    times_s = (began_s[:, None] + np.arange(BURST) * BURST_APART_S).ravel()
    connections = np.arange(len(times_s), dtype=np.uint32) % BURST
    schedule = Schedule((times_s * 1e9).astype(np.int64), connections, connections)
    script = Script(preambles(name, BURST), sleeper_requests(DEADLINE_MS), schedule)
    return await run_script(script, server.port)
