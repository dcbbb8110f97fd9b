"""Deadlines while every executor is busy with something that takes much longer than it should: on time all the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.engine.scenario import Scenario
from tests.engine.test_virtual_time import running
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
TIMEOUT_S = 0.02
US = 1e-6


def stalling() -> Scenario:
    """The first batch takes 0.8 s instead of 4 ms."""
    factors: Iterator[float] = chain([200.0], repeat(1.0))
    return Scenario(service_s=lambda rows: 0.004, noise=lambda: next(factors))


async def test_a_request_behind_a_long_batch(autojump_clock: MockClock) -> None:
    async with running(stalling()) as scenario:
        client = scenario.world.client()
        client.infer(1, timeout_us=0)
        scenario.nudge()
        await trio.sleep(0.1)
        began = trio.current_time()
        assert await scenario.ask(client, 2, TIMEOUT_S) == ErrorCode.DEADLINE_IN_QUEUE
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=US)


async def test_a_request_inside_a_long_batch(autojump_clock: MockClock) -> None:
    async with running(stalling()) as scenario:
        client = scenario.world.client()
        client.infer(1, timeout_us=3_000_000)
        began = trio.current_time()
        assert await scenario.ask(client, 2, TIMEOUT_S) == ErrorCode.DEADLINE_AFTER_EXECUTION
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=US)
        assert await scenario.answer(client, 1) == OK
        assert trio.current_time() - began == pytest.approx(0.8, abs=0.001)


async def test_what_arrives_while_one_runs_is_one_batch(autojump_clock: MockClock) -> None:
    async with running(Scenario()) as scenario:
        client = scenario.world.client()
        client.infer(1)
        scenario.nudge()
        for rid in (2, 3, 4, 5):
            await trio.sleep(0.0005)
            client.infer(rid)
            scenario.nudge()
        for rid in range(1, 6):
            assert await scenario.answer(client, rid) == OK
        assert [batch.rows for batch in scenario.world.executor.batches] == [1, 4]


async def test_who_has_less_time_is_served_first(autojump_clock: MockClock) -> None:
    async with running(Scenario()) as scenario:
        client = scenario.world.client()
        client.infer(1)
        scenario.nudge()
        await trio.sleep(0.001)
        for rid in range(2, 7):
            client.infer(rid, timeout_us=900_000)
        client.infer(7, timeout_us=100_000)
        scenario.nudge()
        for rid in range(2, 8):
            assert await scenario.answer(client, rid) == OK
        assert client.order.index(7) < client.order.index(6), "which came before"


async def test_of_two_models_the_one_with_less_time_is_served_first(autojump_clock: MockClock) -> None:
    async with running(Scenario()) as scenario:
        client = scenario.world.client()
        client.infer(1)
        scenario.nudge()
        await trio.sleep(0.001)
        client.infer(2, "wide", timeout_us=900_000)
        await trio.sleep(0.0001)
        client.infer(3, "narrow", timeout_us=50_000)
        scenario.nudge()
        for rid in (2, 3):
            assert await scenario.answer(client, rid) == OK
        assert client.order == [1, 3, 2]


async def test_work_of_another_model_that_has_time_is_put_off(autojump_clock: MockClock) -> None:
    """The same with 30 ms."""
    async with running(Scenario()) as scenario:
        client = scenario.world.client()
        client.infer(1)
        scenario.nudge()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        client.run(range(10, 22), timeouts_us=30_000)
        client.infer(101, "narrow", timeout_us=12_000)
        for rid in (101, *range(10, 22)):
            assert await scenario.answer(client, rid) == OK
        assert client.order[1] == 101


async def test_work_of_another_model_that_comes_first_is_counted(autojump_clock: MockClock) -> None:
    """One row is running and three full batches of the same model wait for 17.3 ms in all."""
    async with running(Scenario()) as scenario:
        client = scenario.world.client()
        client.infer(1)
        scenario.nudge()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        client.run(range(10, 22), timeouts_us=22_000)
        client.infer(100, "narrow", timeout_us=22_100)
        assert client.code(100) == ErrorCode.SHED, "17.3 ms of other work come first"
        client.infer(101, "narrow", timeout_us=12_000)
        assert client.code(101) == ErrorCode.SHED, "it would go before the other work, and make that late"
        client.infer(102, "narrow", timeout_us=1_000)
        assert client.code(102) == ErrorCode.DEADLINE_INFEASIBLE
