"""Deadlines shorter than what is running, and what is put together while something runs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trioserve_tools.server_process import ServerProcess, server_process

from ._beside import beside
from ._drill import SERVED, Field, Finding, exactly, none_of
from ._models import Sleeper, sleeper_requests, sleepers, statistics_of
from ._paced import preambles, run_script, template
from ._script import Record, Schedule, Script, quantile

DEADLINE_MS: Final = 20.0
BETWEEN_S: Final = 0.007
MARGIN_S: Final = 0.15
"""The last ones must expire before the batch is over."""

CONNECTIONS: Final = 4
PROMISED_MS: Final = 1.0
BEYOND_MS: Final = 0.3


async def deadlines(field: Field) -> list[Finding]:
    """Requests of 20 ms inside a batch that takes 2 s, and behind it.

    Each such batch is the first of a server, which has not learnt yet to refuse what would have to wait for it. A bare
    timer runs beside: no server can be more punctual.
    """
    batch_s = 0.4 if field.quick else 2.0
    records: list[Record] = []
    async with beside("trioserve_tools.drill.bare_timer") as timer:
        for number in range(field.count):
            async with server_process(SERVED) as server:
                records.append(await _one_slow_batch(server, batch_s))
                await server.end()
            field.progress(
                f"batch {number + 1} of {field.count}: {_late_ms(records[-1]).round(2).tolist()[:5]}"
            )
    bare_ms = np.array(timer.said)
    late_ms = np.concatenate([_late_ms(record) for record in records])
    return [
        none_of(
            "other outcomes than DEADLINE_EXCEEDED",
            sum(int((~one.expired[1:]).sum()) + int(not one.ok[0]) for one in records),
        ),
        none_of("answered before the deadline", int((late_ms < 0).sum())),
        _lateness(field, late_ms, bare_ms, 0.5),
        _lateness(field, late_ms, bare_ms, 0.99),
        Finding("a bare timer's, p50", quantile(bare_ms, 0.5), unit="ms"),
        Finding("a bare timer's, p99", quantile(bare_ms, 0.99), unit="ms"),
        Finding("deadlines", len(late_ms)),
        Finding("batches", field.count),
    ]


def _late_ms(record: Record) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of all but the slow one, from the deadline on; the client's own lateness is not the server's."""
    return ((record.answered_ns - record.sent_ns) / 1e6 - DEADLINE_MS + _whole_us_ms(record))[1:]


def _whole_us_ms(record: Record) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the client took off each deadline, because it was late: whole microseconds, on the wire."""
    return (record.sent_ns - record.planned_ns) // 1000 / 1e3


def _lateness(
    field: Field,
    late_ms: np.ndarray[Any, np.dtype[np.float64]],
    bare_ms: np.ndarray[Any, np.dtype[np.float64]],
    which: float,
) -> Finding:
    """A millisecond is promised, or what a bare timer is late by and 0.3 ms."""
    bound_ms = max(PROMISED_MS, round(quantile(bare_ms, which) + BEYOND_MS, 2))
    return field.timing(f"lateness, p{which * 100:.0f}", quantile(late_ms, which), bound_ms, "ms")


async def _one_slow_batch(server: ServerProcess, batch_s: float) -> Record:
    """The slow request is the first of the record; the second is in its batch."""
    slow = template(np.full(1, batch_s, np.float32).tobytes())
    fast = template(np.zeros(1, np.float32).tobytes(), deadline_ms=DEADLINE_MS)
    times_s = np.concatenate([[0, 0], np.arange(BETWEEN_S, batch_s - MARGIN_S, BETWEEN_S)])
    which = np.ones(len(times_s), np.uint32)
    which[0] = 0
    links = np.arange(len(times_s), dtype=np.uint32) % CONNECTIONS
    links[:2] = 0
    schedule = Schedule((times_s * 1e9).astype(np.int64), links, which)
    return await run_script(Script(preambles("slow", CONNECTIONS), [slow, fast], schedule), server.port)


# ---------------------------------------------------------------- late binding

RUNNING_MS: Final = 60.0
LATER: Final = 4
APART_S: Final = 0.01
ROUND_S: Final = 0.2


async def late_binding(field: Field) -> list[Finding]:
    """One request runs; four arrive one after the other meanwhile. What waits is put together when there is room."""
    times_s = [number * ROUND_S + APART_S * i for number in range(field.count) for i in range(LATER + 1)]
    connections = np.tile(np.arange(LATER + 1, dtype=np.uint32), field.count)
    schedule = Schedule((np.array(times_s) * 1e9).astype(np.int64), connections, connections)
    async with sleepers(Sleeper("sleeper", RUNNING_MS, 0)) as server:
        script = Script(preambles("sleeper", LATER + 1), sleeper_requests(2000), schedule)
        record = await run_script(script, server.port)
        sizes = (await statistics_of(server.port, "sleeper"))["batch_sizes"]
    together = sizes.get(str(LATER), 0)
    return [
        none_of("not answered, or wrong", int((~record.ok).sum()) + record.wrong),
        exactly("batches of the four that came meanwhile", together, field.count),
        none_of("batches of other sizes", sum(sizes.values()) - together - sizes.get("1", 0)),
        Finding("rounds", field.count),
    ]
