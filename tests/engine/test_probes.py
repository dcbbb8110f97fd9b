"""A model that was slow for a while: its clients are refused, and served again soon after it is fast again."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine import Lane
from trioserve_protocol import ErrorCode


def believed(world: World, run_ns: int, deviation_ns: int = 0) -> Lane:
    """A model that is believed to take so long."""
    lane = world.lane("wide")
    lane.service = ServiceModel({1: run_ns, 4: run_ns}, {1: deviation_ns, 4: deviation_ns})
    return lane


def ask(world: World, seconds: float, run_ns: int, timeout_ns: int, every_ns: int = 5 * MS) -> Counter[str]:
    """One client asks again and again; says what became of it in the last tenth of the time."""
    lane, client = world.lane("wide"), world.client()
    end_ns = world.clock.ns + int(seconds * 1e9)
    before: Counter[str] = Counter()
    is_last = False
    for rid in range(1, 1_000_000):
        if world.clock.ns >= end_ns:
            break
        if not is_last and end_ns - world.clock.ns < seconds * 1e8:
            before, is_last = tally(lane), True
        client.infer(rid, timeout_us=timeout_ns // 1_000)
        world.turn()
        if world.executor.sent:
            world.pass_time(run_ns)
            world.executor.finish(took_ns=run_ns)
            world.turn()
        world.pass_time(every_ns)
    return tally(lane) - before


def tally(lane: Lane) -> Counter[str]:
    return Counter(
        {"asked": lane.stats.received, "batches": lane.stats.batches}
        | {code.name: count for code, count in lane.stats.errors.items()}
    )


@pytest.mark.parametrize("timeout_ns", [20 * MS, 45 * MS], ids=["infeasible", "shed"])
def test_a_model_that_is_fast_again_is_found_out(world: World, timeout_ns: int) -> None:
    lane = believed(world, 40 * MS, 8 * MS)
    last = ask(world, 1.5, 2 * MS, timeout_ns)
    assert last["batches"] == last["asked"] > 10
    assert lane.service.mean_ns(1) < 20 * MS


def test_one_that_nothing_can_be_done_for_is_tried_less_and_less(world: World) -> None:
    lane = believed(world, 40 * MS, 2 * MS)
    kg, z = lane.scheduler.margins.kg, lane.scheduler.margins.z
    ask(world, 5, 40 * MS, 20 * MS)
    assert 3 <= lane.stats.batches <= 6
    assert lane.service.mean_ns(1) == pytest.approx(40 * MS, rel=0.01)
    assert (lane.scheduler.margins.kg, lane.scheduler.margins.z) == (kg, z)


def test_nobody_is_a_probe_while_anything_is_under_way(world: World) -> None:
    lane = believed(world, 40 * MS)
    world.client().infer(1, timeout_us=1_000_000)
    world.turn()
    assert world.executor.sent
    client = world.client()
    for rid in range(100):
        client.infer(rid + 2, timeout_us=20_000)
        world.pass_time(5 * MS)
    assert lane.stats.errors[ErrorCode.DEADLINE_INFEASIBLE] == 100


@pytest.mark.parametrize(("took_ns", "batches"), [(30 * MS, 1), (1 * MS, 0)], ids=["longer", "not as long"])
def test_a_batch_that_was_ended_early_teaches_that_it_takes_longer(
    world: World, took_ns: int, batches: int
) -> None:
    """Where all requests expire while they run, nothing else would ever be learnt."""
    lane = believed(world, 2 * MS)
    before_ns = lane.service.mean_ns(1)
    world.client().infer(1, timeout_us=20_000)
    world.turn()
    world.pass_time(30 * MS)
    assert world.executor.link.abandoned
    world.executor.finish(code=ErrorCode.CANCELLED, took_ns=took_ns)
    world.turn()
    assert lane.service.batches == batches
    assert (lane.service.mean_ns(1) > before_ns) == bool(batches)


def test_a_model_that_becomes_slow_is_found_out_from_batches_that_nobody_waits_for(world: World) -> None:
    lane, client = believed(world, 2 * MS, 100_000), world.client()
    for rid in range(1, 200):
        client.infer(rid, timeout_us=20_000)
        world.turn()
        if world.executor.sent:
            world.pass_time(40 * MS)
            world.executor.finish(code=ErrorCode.CANCELLED, took_ns=40 * MS)
        world.pass_time(5 * MS)
    assert lane.service.mean_ns(1) > 10 * MS
    assert lane.stats.refused > 100
