"""Where there was no room a moment ago, nobody asks again; and what a batch takes is what the server sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.world import MS, US, World
from trioserve.batching import ServiceModel
from trioserve.engine import Lane
from trioserve_protocol import ErrorCode, RequestClass

TIGHT_US = 60_000


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A model of 20 ms a batch that has as much to do as it can within 60 ms; says how often its rule was asked."""
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 20 * MS, 4: 20 * MS})
    calls = 0
    admit = lane.scheduler.admit

    def counted(*args: Any, **named: Any) -> tuple[int, ErrorCode]:
        nonlocal calls
        calls += 1
        return admit(*args, **named)

    monkeypatch.setattr(lane.scheduler, "admit", counted)
    client = world.client()
    for rid in range(100, 114):
        client.infer(rid, timeout_us=TIGHT_US)
    world.turn()
    assert lane.stats.refused > 1
    return lambda: calls


def shed(lane: Lane) -> int:
    return lane.stats.errors.get(ErrorCode.SHED, 0)


def test_the_rule_is_not_asked_about_one_who_has_no_better_prospects(
    world: World, asked: Callable[[], int]
) -> None:
    lane, client = world.lane("wide"), world.client()
    before, refused, offered = asked(), shed(lane), lane.door.classes.offered_ns[0]
    left = lane.door.room.left
    client.infer(1, timeout_us=TIGHT_US)
    client.infer(2, timeout_us=TIGHT_US - 7)
    assert asked() == before
    assert shed(lane) == refused + 2
    assert lane.door.classes.offered_ns[0] > offered
    assert lane.door.room.left == left
    assert lane.scheduler.shed_ns == world.clock.ns


@pytest.mark.parametrize(
    "better",
    [
        {"timeout_us": 2 * TIGHT_US},
        {"timeout_us": TIGHT_US, "flags": int(RequestClass.CRITICAL_PLUS)},
        {"timeout_us": TIGHT_US, "flags": int(RequestClass.SHEDDABLE)},
        {"timeout_us": 1},
    ],
    ids=["more time", "a better class", "a lesser class", "infeasible"],
)
def test_whoever_differs_is_asked_about(
    world: World, asked: Callable[[], int], better: dict[str, Any]
) -> None:
    before = asked()
    world.client().infer(1, **better)
    assert asked() == before + 1


def test_it_is_asked_again_when_a_batch_has_come_back(world: World, asked: Callable[[], int]) -> None:
    before = asked()
    world.executor.finish()
    world.turn()
    world.client().infer(1, timeout_us=TIGHT_US)
    assert asked() == before + 1


def test_it_is_asked_again_when_the_time_is_over(world: World, asked: Callable[[], int]) -> None:
    before = asked()
    world.clock.ns = world.lane("wide").door.full_until_ns[0]
    world.client().infer(1, timeout_us=TIGHT_US)
    assert asked() == before + 1


@pytest.mark.parametrize("is_large", [False, True], ids=["three rows", "a payload to come"])
def test_whoever_needed_more_closes_the_door_to_nobody(
    world: World, asked: Callable[[], int], *, is_large: bool
) -> None:
    """Of who needs one row, or has sent all of it, that says nothing; the other way round it does."""
    lane, client = world.lane("wide"), world.client()
    lane.mean_way_ns = 12 * MS
    lane.door.reopen()
    before, refused = asked(), shed(lane)
    if is_large:
        client.begin(1, timeout_us=TIGHT_US)
    else:
        client.infer(1, rows=3, timeout_us=TIGHT_US)
    assert shed(lane) == refused + 1
    client.infer(2, timeout_us=TIGHT_US)
    assert asked() == before + 2
    assert shed(lane) == refused + 2
    client.infer(3, rows=3, timeout_us=TIGHT_US)
    client.begin(4, timeout_us=TIGHT_US)
    assert asked() == before + 2


def test_who_waits_as_long_for_the_rest_of_its_payload_has_no_better_prospects(
    world: World, asked: Callable[[], int]
) -> None:
    """As all texts do, which wait for the tokenizer."""
    lane, client = world.lane("wide"), world.client()
    lane.mean_way_ns = 12 * MS
    lane.door.reopen()
    before, refused = asked(), shed(lane)
    client.begin(1, timeout_us=TIGHT_US)
    client.begin(2, timeout_us=TIGHT_US)
    assert asked() == before + 1
    assert shed(lane) == refused + 2


# ---------------------------------------------------------------- what a batch takes


def test_the_way_to_the_worker_and_back_is_learnt_as_part_of_the_time(world: World) -> None:
    """It ran for 2 ms, but came back after 3: nobody can be answered sooner."""
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 2 * MS, 4: 2 * MS})
    for rid in range(1, 300):
        world.client().infer(rid)
        world.turn()
        world.clock.ns += 3 * MS
        world.executor.finish()
        world.turn()
    assert lane.service.mean_ns(1) == pytest.approx(3 * MS, abs=50 * US)
    assert lane.service.way_ns == pytest.approx(MS, abs=50 * US)
