"""Overload in virtual time: who is admitted is answered in time, who is not is told at once, and nobody starves."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from tests.engine.play_client import Client
from tests.engine.play_models import fixed_config, text_config
from tests.engine.scenario import LoopClock, Scenario
from tests.engine.test_virtual_time import running
from tests.engine.world import World
from trioserve.batching import ServiceModel
from trioserve.config import ServerLimits
from trioserve_protocol import ErrorCode

pytestmark = pytest.mark.slow

OK, SHED = ErrorCode.OK, ErrorCode.SHED
SLA_S = 0.05
ROWS = 8
CAPACITY = ROWS / (0.005 + 0.0002 * ROWS)
"""Requests a second."""

CRITICAL, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE = range(4)


def overload_scenario(**changes: object) -> Scenario:
    """One model of 5 ms + 0.2 ms a row whose run times scatter by 7 %, and no check of the whole world every turn."""
    rng = random.Random(5)
    config = fixed_config("wide", slots=1024, batching={"max_rows": ROWS}, default_deadline_ms=1e3 * SLA_S)
    limits = ServerLimits(credit_requests=100_000)
    changes = {"configs": [config], "clock": LoopClock(), "limits": limits} | changes
    world = World(**changes)  # type: ignore[arg-type]
    return Scenario(
        service_s=lambda rows: 0.005 + 0.0002 * rows,
        noise=lambda: rng.lognormvariate(-(0.07**2) / 2, 0.07),
        world=world,
        checked=False,
    )


@dataclass
class Load:
    """What became of the requests of one open loop."""

    sent: int = 0
    in_time: int = 0
    late: int = 0
    slowest_refusal_s: float = 0.0
    codes: Counter[ErrorCode] = field(default_factory=Counter)

    @property
    def admitted(self) -> int:
        return self.sent - self.codes[SHED]


async def open_loop(
    scenario: Scenario,
    client: Client,
    per_s: float,
    seconds: float,
    *,
    flags: int = 0,
    timeout_s: float = SLA_S,
    seed: int = 1,
) -> Load:
    """Poisson arrivals from one connection."""
    rng = random.Random(seed)
    load, began = Load(), trio.current_time()

    async def one(rid: int) -> None:
        sent_at = trio.current_time()
        client.infer(rid, flags=flags, timeout_us=round(timeout_s * 1e6))
        code = await scenario.answer(client, rid)
        took_s = trio.current_time() - sent_at
        load.codes[code] += 1
        if code == OK:
            load.in_time += took_s <= timeout_s + 1e-9
            load.late += took_s > timeout_s + 1e-9
        elif code == SHED:
            load.slowest_refusal_s = max(load.slowest_refusal_s, took_s)
        assert took_s <= timeout_s + 1e-6, "answered late"

    first = max(client.ended, default=0) + 1
    async with trio.open_nursery() as nursery:
        while trio.current_time() < began + seconds:
            nursery.start_soon(one, first + load.sent)
            load.sent += 1
            await trio.sleep(rng.expovariate(per_s))
    return load


async def loads(scenario: Scenario, *loops: Callable[[], object]) -> list[Load]:
    """Several open loops at once."""
    results: list[Load] = [Load() for _ in loops]

    async def run(number: int, loop: Callable[[], object]) -> None:
        results[number] = await loop()  # type: ignore[misc]

    async with trio.open_nursery() as nursery:
        for number, loop in enumerate(loops):
            nursery.start_soon(run, number, loop)
    return results


def loop(scenario: Scenario, share: float, seconds: float, **options: object) -> Callable[[], object]:
    client = scenario.world.client()
    return lambda: open_loop(scenario, client, share * CAPACITY, seconds, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- one kind of client


@pytest.mark.parametrize("times", [2, 5])
async def test_overload_costs_no_goodput(autojump_clock: MockClock, times: float) -> None:
    async with running(overload_scenario()) as scenario:
        [load] = await loads(scenario, loop(scenario, times, 1.5))
        lane = scenario.world.lane("wide")
        assert load.late == 0
        assert load.in_time >= 0.95 * CAPACITY * 1.5
        assert load.slowest_refusal_s == 0
        dropped = load.admitted - load.in_time
        assert dropped <= 0.01 * load.admitted
        assert lane.door.room.left <= 0.01 * load.codes[SHED]


async def test_below_saturation_nobody_is_refused(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        [load] = await loads(scenario, loop(scenario, 0.8, 2.0))
        assert load.in_time >= 0.999 * load.sent


async def test_after_overload_all_is_as_before(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        await loads(scenario, loop(scenario, 5, 0.5))
        await trio.sleep(0.3)
        [load] = await loads(scenario, loop(scenario, 0.7, 1.0))
        assert load.in_time == load.sent
        await trio.sleep(0.2)
        await scenario.ask(scenario.world.client(), 1)
        lane = scenario.world.lane("wide")
        assert lane.calm_rows > 0, "the fast path is open again"


async def test_a_deadline_that_nobody_could_meet_is_refused_as_such(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        client = scenario.world.client()
        began = trio.current_time()
        assert await scenario.ask(client, 1, 0.004) == ErrorCode.DEADLINE_INFEASIBLE
        assert trio.current_time() == began
        assert await scenario.ask(client, 2, 0.008) == OK


async def test_overload_with_texts(autojump_clock: MockClock) -> None:
    """Tokens are what counts, and a text is admitted before anybody knows how many it has."""
    batching = {"max_rows": ROWS, "buckets": [8, 32]}
    config = text_config(slots=512, batching=batching, default_deadline_ms=1e3 * SLA_S)
    scenario = overload_scenario(configs=[config])
    scenario.tokenize_s = lambda rows: 0.0001 + 0.00005 * rows
    scenario.world.text.service = ServiceModel({8: 5_200_000, 8 * ROWS: 6_600_000})
    async with running(scenario):
        client = scenario.world.client("text")
        rng, codes = random.Random(4), Counter[ErrorCode]()

        async def one(rid: int) -> None:
            began = trio.current_time()
            client.texts(rid, [8], timeout_us=round(1e6 * SLA_S))
            codes[await scenario.answer(client, rid)] += 1
            assert trio.current_time() - began <= SLA_S + 1e-6

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for rid in range(1, 3001):
                nursery.start_soon(one, rid)
                await trio.sleep(rng.expovariate(3 * CAPACITY))
        assert codes[OK] >= 0.95 * CAPACITY * (trio.current_time() - began - SLA_S)
        assert codes[OK] + codes[SHED] >= 0.995 * 3000


# ---------------------------------------------------------------- tenants


async def test_a_flood_of_one_tenant_leaves_the_others_their_part(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        flood, *others = await loads(
            scenario, loop(scenario, 8, 1.5), *(loop(scenario, 1, 1.5, seed=number) for number in (2, 3, 4))
        )
        served = [load.in_time for load in (flood, *others)]
        assert jain(served) >= 0.97, served
        assert sum(served) >= 0.9 * CAPACITY * 1.5


async def test_who_asks_for_less_than_its_part_gets_it(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        _, modest = await loads(scenario, loop(scenario, 10, 1.0), loop(scenario, 0.2, 1.0, seed=2))
        assert modest.in_time >= 0.85 * modest.sent


def jain(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


# ---------------------------------------------------------------- classes


async def test_a_better_class_is_served_first(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        plus, sheddable = await loads(
            scenario,
            loop(scenario, 0.45, 2.0, flags=CRITICAL_PLUS),
            loop(scenario, 5, 2.0, flags=SHEDDABLE, seed=2),
        )
        assert plus.in_time >= 0.999 * plus.sent
        assert plus.in_time + sheddable.in_time >= 0.9 * CAPACITY * 2.0


async def test_a_flood_of_a_better_class_leaves_a_floor(autojump_clock: MockClock) -> None:
    async with running(overload_scenario()) as scenario:
        plus, sheddable = await loads(
            scenario,
            loop(scenario, 5, 1.2, flags=CRITICAL_PLUS),
            loop(scenario, 1, 1.2, flags=SHEDDABLE, seed=2),
        )
        assert sheddable.in_time >= 0.03 * CAPACITY * 1.2
        assert plus.in_time + sheddable.in_time >= 0.95 * CAPACITY * 1.2


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_cancel_storm_leaves_nothing(autojump_clock: MockClock, how: str) -> None:
    async with running(overload_scenario()) as scenario:
        world = scenario.world
        for _ in range(100):
            client = world.client()
            client.run(range(1, 65))
            scenario.nudge()
            await trio.sleep(0.001)
            if how == "cancel":
                client.cancel()
            client.close()
            scenario.nudge()
            last = world.client()
            assert await scenario.ask(last, 1, 1.0) == OK
            last.close()
        await trio.sleep(1)
        world.check_rest()
        assert math.isfinite(world.lane("wide").scheduler.margins.z)
