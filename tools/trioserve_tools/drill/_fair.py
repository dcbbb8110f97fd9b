"""Some want more than their share: what the others feel of it, and what each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trioserve_protocol import RequestClass
from trioserve_tools.server_process import ServerProcess

from ._drill import QUICK_SECOND, Field, Finding, none_of
from ._models import REQUESTS, Sleeper, sleeper_requests, sleepers
from ._overload import Subject, capacity_of
from ._paced import merged, poisson, preambles, run_script
from ._script import Record, Schedule, Script, Template, quantile

Floats = npt.NDArray[np.float64]

SLA_MS: Final = 50.0
UNHURRIED_MS: Final = 10_000.0
LINKS: Final = 4
"""Connections of each tenant, or of each class."""

# ---------------------------------------------------------------- tenants

TENANTS: Final = 8
GREEDY: Final = TENANTS - 1
PART: Final = 0.8
"""Of its fair share, what a modest tenant asks for."""

TIMES: Final = 10.0
"""Of its fair share, what the greedy one asks for."""


async def tenant_flood(field: Field) -> list[Finding]:
    """Eight tenants; one of them asks for ten times its share, the others for 0.8 of theirs."""
    async with sleepers(Sleeper("sleeper", 5, 0.2, SLA_MS)) as server:
        capacity = await _capacity(field, server)
        share = capacity / TENANTS
        alone = await _run_tenants(field, server, [PART * share] * TENANTS)
        flooded = await _run_tenants(field, server, [PART * share] * GREEDY + [TIMES * share])
    others_ms = [_p99_of_others(record) for record in (alone, flooded)]
    rates = np.array([_of_tenant(flooded, tenant).in_time(SLA_MS).sum() for tenant in range(TENANTS)])
    asked = np.array([len(_of_tenant(flooded, tenant)) for tenant in range(TENANTS)])
    others = flooded.only(flooded.connections // LINKS != GREEDY)
    return [
        none_of("unanswered, or wrong", flooded.unanswered + flooded.wrong + flooded.repeated),
        field.timing("others' p99 over their p99 without it", others_ms[1] / others_ms[0], 1.5, "x"),
        field.at_least("Jain of rate over fair share", jain(rates / fair_shares(asked, rates.sum())), 0.98),
        Finding("others' requests in time", 100 * float(others.in_time(SLA_MS).mean()), unit="%"),
        Finding("served of all, over capacity", rates.sum() / field.seconds / capacity),
        Finding("capacity", capacity, unit="requests/s"),
    ]


async def _run_tenants(field: Field, server: ServerProcess, rates: Sequence[float]) -> Record:
    rng = field.rng()
    links = preambles("sleeper", TENANTS * LINKS, [f"tenant-{i // LINKS}" for i in range(TENANTS * LINKS)])
    schedules = [
        _moved(poisson([(rate, field.seconds)], LINKS, REQUESTS, rng), tenant * LINKS)
        for tenant, rate in enumerate(rates)
    ]
    return await run_script(Script(links, sleeper_requests(SLA_MS), merged(schedules)), server.port)


def _moved(schedule: Schedule, connections: int, templates: int = 0) -> Schedule:
    return Schedule(
        schedule.times_ns,
        schedule.connections + np.uint32(connections),
        schedule.templates + np.uint32(templates),
    )


def _of_tenant(record: Record, tenant: int) -> Record:
    return record.only(record.connections // LINKS == tenant)


def _p99_of_others(record: Record) -> float:
    others = record.only((record.connections // LINKS != GREEDY) & ~record.refused)
    return quantile(others.latency_ms, 0.99)


def jain(values: Floats) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def fair_shares(asked: npt.NDArray[Any], total: float) -> Floats:
    """Max-min fair shares: nobody gets more than was asked for, and what one leaves the others divide.

    Args:
        asked: By each.
        total: To be divided.
    """
    shares = np.zeros(len(asked))
    left, open_ = float(total), np.ones(len(asked), bool)
    while open_.any():
        equal = left / open_.sum()
        content = open_ & (asked <= equal)
        if not content.any():
            shares[open_] = equal
            break
        shares[content] = asked[content]
        left -= float(asked[content].sum())
        open_ &= ~content
    return shares


# ---------------------------------------------------------------- classes

FLOOR: Final = 0.05
"""Of the capacity, what is kept for each class that asks for it."""

ENOUGH: Final = 0.9
"""Of the floor, what must be served in time: the same part as of the capacity."""

LOWER_FIRST: Final = {
    RequestClass.CRITICAL_PLUS: 0.1,
    RequestClass.CRITICAL: 0.4,
    RequestClass.SHEDDABLE_PLUS: 1.0,
    RequestClass.SHEDDABLE: 1.5,
}
"""Three times the capacity in all, most of it sheddable: what each class asks for, as a part of the capacity."""

UPPER_FLOODS: Final = {
    RequestClass.CRITICAL_PLUS: 0.1,
    RequestClass.CRITICAL: 2.7,
    RequestClass.SHEDDABLE_PLUS: 0.1,
    RequestClass.SHEDDABLE: 0.1,
}
"""Three times the capacity in all, most of it critical: the others ask for twice their floor."""


async def class_floods(field: Field) -> list[Finding]:
    """Four classes, three times the capacity: a sheddable flood is shed, a critical one leaves the others alive."""
    async with sleepers(Sleeper("sleeper", 5, 0.2, SLA_MS)) as server:
        capacity = await _capacity(field, server)
        lower = await _run_classes(field, server, capacity, LOWER_FIRST)
        upper = await _run_classes(field, server, capacity, UPPER_FLOODS)
    critical = lower.only(_of_classes(lower, (RequestClass.CRITICAL_PLUS, RequestClass.CRITICAL)))
    floors = [
        float(upper.only(_of_classes(upper, (one,))).in_time(SLA_MS).sum())
        / field.seconds
        / (FLOOR * capacity)
        for one in (RequestClass.SHEDDABLE_PLUS, RequestClass.SHEDDABLE)
    ]
    return [
        none_of(
            "unanswered, or wrong", sum(one.unanswered + one.wrong + one.repeated for one in (lower, upper))
        ),
        field.at_least(
            "critical in time beside a sheddable flood", 100 * critical.in_time(SLA_MS).mean(), 99.9, "%"
        ),
        field.at_least("floor of SHEDDABLE_PLUS beside a critical flood", floors[0], ENOUGH, "x"),
        field.at_least("floor of SHEDDABLE beside a critical flood", floors[1], ENOUGH, "x"),
        *(
            Finding(f"goodput, {name} flood", record.in_time(SLA_MS).sum() / field.seconds / capacity)
            for name, record in (("sheddable", lower), ("critical", upper))
        ),
    ]


def _of_classes(record: Record, classes: Sequence[RequestClass]) -> npt.NDArray[np.bool_]:
    return np.isin(record.templates // REQUESTS, [int(one) for one in classes])


async def _run_classes(
    field: Field, server: ServerProcess, capacity: float, parts: Mapping[RequestClass, float]
) -> Record:
    rng = field.rng()
    requests: list[Template] = []
    for number in range(len(RequestClass)):
        requests += sleeper_requests(SLA_MS, RequestClass(number))
    schedules = [
        _moved(
            poisson([(part * capacity, field.seconds)], LINKS, REQUESTS, rng),
            int(one) * LINKS,
            int(one) * REQUESTS,
        )
        for one, part in parts.items()
    ]
    # One tenant: what classes do to each other is asked, not what connections do.
    links = preambles("sleeper", len(RequestClass) * LINKS, ["everybody"])
    return await run_script(Script(links, requests, merged(schedules)), server.port)


async def _capacity(field: Field, server: ServerProcess) -> float:
    subject = Subject(server, "sleeper", SLA_MS, [], sleeper_requests(UNHURRIED_MS), ((64, 1), (64, 2)))
    return await capacity_of(subject, QUICK_SECOND if field.quick else 3.0)
