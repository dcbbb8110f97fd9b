"""More than a server can do, from clients that do not wait: what is still done in time, and what is refused at once.

Capacity is the best closed-loop rate in the same run. Then requests arrive at random at a multiple of it, each with
the model's deadline on the wire, and at 0.7 of it afterwards. Goodput is what was answered with a result before its
deadline, which counts from the planned time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trioserve_protocol import encode_bytes
from trioserve_tools.minilm.throughput import some_questions
from trioserve_tools.server_process import ServerProcess, server_process
from trioserve_tools.wheels import WheelError

from ._drill import QUICK_SECOND, Field, Finding, NotRun, none_of
from ._models import WHEELS, Sleeper, minilm_repository, sleeper_requests, sleepers, statistics_of
from ._observe import fds_of, leaks
from ._paced import kept_pace, poisson, preambles, run_script, template
from ._script import Loop, Record, Script, Template, quantile

FACTORS: Final = (2, 5, 10)
AFTERWARDS: Final = 0.7
AFTERWARDS_S: Final = 3.0
BELOW: Final = 0.8
CONNECTIONS: Final = 64
CAPACITY_MS: Final = 10_000.0
"""Deadline while capacity is measured: nothing is refused then."""

WINDOW_S: Final = 0.1
NORMAL: Final = 0.99
"""Of the requests of a window that must be answered in time for the server to be called normal again."""

QUESTIONS: Final = 512
BEHIND_MS: Final = 1.0
BEHIND_PART: Final = 0.02
"""Of the deadline, what the client may be behind its schedule by: it makes the figures worse, never better."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under overload."""

    server: ServerProcess
    model: str
    sla_ms: float
    requests: Sequence[Template]
    unhurried: Sequence[Template]
    """The same with a deadline that does not matter."""

    loops: Sequence[tuple[int, int]]
    """Connections, and requests on each, of the closed loops whose best is the capacity."""


@dataclass(frozen=True, slots=True)
class Flood:
    """What became of one multiple of the capacity."""

    factor: float
    whole: Record
    during: Record
    goodput: float
    """As a part of the capacity."""

    late: float
    """Of the rows that were executed, the part whose deadline passed meanwhile."""

    dropped: float
    """Of the requests that were admitted, the part whose deadline passed before they were executed."""

    left_room: float
    """Of the sheds, the part that would have been answered in time: a batch with a free place started after it."""

    recovery_s: float


async def overload_sleeper(field: Field) -> list[Finding]:
    """A model that takes 5 ms + 0.2 ms a row, with 50 ms for each request."""
    sla_ms = 50.0
    async with sleepers(Sleeper("sleeper", 5, 0.2, sla_ms)) as server:
        subject = Subject(
            server,
            "sleeper",
            sla_ms,
            sleeper_requests(sla_ms),
            sleeper_requests(CAPACITY_MS),
            ((64, 1), (64, 2)),
        )
        return await _overload(field, subject)


async def overload_minilm(field: Field) -> list[Finding]:
    """MiniLM on real questions, with 250 ms for each."""
    sla_ms = 250.0
    with tempfile.TemporaryDirectory(prefix="trioserve-minilm-") as folder:
        repository = await minilm_repository(field, "packed", sla_ms, Path(folder))
        try:
            payloads = [encode_bytes([text.encode()]) for text in some_questions(WHEELS, QUESTIONS)]
        except WheelError as error:
            raise NotRun(str(error)) from None
        async with server_process(repository) as server:
            subject = Subject(
                server,
                "minilm",
                sla_ms,
                [template(payload, deadline_ms=sla_ms) for payload in payloads],
                [template(payload, deadline_ms=CAPACITY_MS) for payload in payloads],
                ((16, 1), (32, 1), (64, 1)),
            )
            findings = await _overload(field, subject)
            await server.end()
            return findings


# ---------------------------------------------------------------- one subject


async def _overload(field: Field, subject: Subject) -> list[Finding]:
    fds = await fds_of(subject.server)
    capacity = await capacity_of(subject, QUICK_SECOND if field.quick else 5.0)
    field.progress(f"capacity {capacity:.0f} requests a second")
    below = await _open_run(field, subject, [(BELOW * capacity, field.seconds)])
    floods = []
    for factor in FACTORS:
        floods.append(await _flood(field, subject, factor, capacity))
        field.progress(_told(floods[-1]))
    leaked = await leaks(subject.server, fds)
    everything = [below, *(flood.whole for flood in floods)]
    return [
        none_of("unanswered", sum(record.unanswered for record in everything)),
        none_of("wrong or repeated", sum(record.wrong + record.repeated for record in everything)),
        none_of("leaked", leaked),
        *(field.at_least(f"goodput at {one.factor}x over capacity", one.goodput, 0.9) for one in floods),
        *_worst(field, floods, subject.sla_ms),
        field.at_least(
            f"in time at {BELOW} of capacity", 100 * below.in_time(subject.sla_ms).mean(), 99.9, "%"
        ),
        Finding("capacity", capacity, unit="requests/s"),
        Finding("requests", sum(map(len, everything))),
    ]


def _worst(field: Field, floods: Sequence[Flood], sla_ms: float) -> list[Finding]:
    accepted_ms = [quantile(one.during.latency_ms[~one.during.refused], 0.99) for one in floods]
    refused_ms = [
        quantile(one.during.latency_ms[one.during.refused], 0.99)
        for one in floods
        if one.during.refused.any()
    ]
    return [
        field.timing("accepted, p99", max(accepted_ms), sla_ms, "ms"),
        field.timing("refused within, p99", max(refused_ms, default=0.0), 5, "ms"),
        field.timing("executed but late", 100 * max(one.late for one in floods), 1, "%"),
        field.timing("dropped after admission", 100 * max(one.dropped for one in floods), 1, "%"),
        field.timing("normal again after", max(one.recovery_s for one in floods), 2, "s"),
        field.timing("shed with room left", 100 * max(one.left_room for one in floods), 1, "%"),
    ]


def _told(flood: Flood) -> str:
    return (
        f"{flood.factor}x: goodput {flood.goodput:.3f}, late {flood.late:.2%}, dropped {flood.dropped:.2%}, "
        f"room left {flood.left_room:.2%}, "
        f"p99 of accepted {quantile(flood.during.latency_ms[~flood.during.refused], 0.99):.1f} ms, "
        f"of refused {quantile(flood.during.latency_ms[flood.during.refused], 0.99):.2f} ms, "
        f"normal after {flood.recovery_s:.1f} s, client behind p99 {quantile(flood.during.behind_ms, 0.99):.2f} ms"
    )


async def capacity_of(subject: Subject, seconds: float) -> float:
    """The best closed-loop rate, in requests a second."""
    best = 0.0
    for connections, outstanding in subject.loops:
        script = Script(
            preambles(subject.model, connections), subject.unhurried, Loop(seconds, outstanding=outstanding)
        )
        record = await run_script(script, subject.server.port)
        ends_ns = np.sort(record.answered_ns[record.ok])
        # The first fifth is the way up, and what is answered last is the way down.
        counted = ends_ns[(ends_ns > ends_ns[0] + seconds * 2e8) & (ends_ns < ends_ns[0] + seconds * 1e9)]
        best = max(best, (len(counted) - 1) / float(counted[-1] - counted[0]) * 1e9)
    return best


async def _open_run(field: Field, subject: Subject, phases: Sequence[tuple[float, float]]) -> Record:
    schedule = poisson(phases, CONNECTIONS, len(subject.requests), field.rng())
    script = Script(preambles(subject.model, CONNECTIONS), subject.requests, schedule)
    record = await run_script(script, subject.server.port)
    return record if field.quick else kept_pace(record, max(BEHIND_MS, BEHIND_PART * subject.sla_ms))


async def _flood(field: Field, subject: Subject, factor: float, capacity: float) -> Flood:
    seconds, afterwards_s = field.seconds, QUICK_SECOND if field.quick else AFTERWARDS_S
    before = await statistics_of(subject.server.port, subject.model)
    phases = [(factor * capacity, seconds), (AFTERWARDS * capacity, afterwards_s)]
    record = await _open_run(field, subject, phases)
    after = await statistics_of(subject.server.port, subject.model)
    during, afterwards = record.between(0, seconds), record.between(seconds, seconds + afterwards_s)
    return Flood(
        factor,
        record,
        during,
        float(during.in_time(subject.sla_ms).sum() / seconds / capacity),
        *_of_statistics(before, after),
        _recovery_s(afterwards, seconds, afterwards_s, subject.sla_ms),
    )


def _of_statistics(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, float, float]:
    """Parts of executed rows that were late, of admitted requests that were dropped, of sheds that left room."""

    def grown(name: str) -> int:
        return int(after[name] - before[name])

    def errors(name: str) -> int:
        return int(after["errors"].get(name, 0) - before["errors"].get(name, 0))

    refused = grown("refused")
    admitted = grown("received") - refused
    left = after["scheduler"]["shed_that_left_room"] - before["scheduler"]["shed_that_left_room"]
    late = errors("DEADLINE_AFTER_EXECUTION") / max(1, grown("rows"))
    return late, errors("DEADLINE_IN_QUEUE") / max(1, admitted), left / max(1, errors("SHED"))


def _recovery_s(afterwards: Record, first_s: float, seconds: float, sla_ms: float) -> float:
    """When the last window ended in which too few were answered in time, in seconds after the flood."""
    windows = ((afterwards.planned_ns - afterwards.start_ns) / 1e9 - first_s) // WINDOW_S
    good = afterwards.in_time(sla_ms)
    for window in reversed(range(int(seconds / WINDOW_S))):
        among = good[windows == window]
        if len(among) and among.mean() < NORMAL:
            return (window + 1) * WINDOW_S
    return 0.0
