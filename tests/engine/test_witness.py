"""What is recorded of a model, and given to its shadows: everything that was asked, however it came."""

from __future__ import annotations

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.engine import Lane
from trioserve.engine._witness import Witness
from trioserve.observability import TrafficRecord


def watched(world: World, name: str, requests: int = 100) -> Lane:
    lane = world.lane(name)
    lane.witness = Witness(lane, requests)
    return lane


def record_of(lane: Lane) -> TrafficRecord:
    assert lane.witness is not None
    record = lane.witness.record()
    assert record is not None
    return record


def test_whatever_way_it_comes_it_is_seen_once(world: World) -> None:
    lane = watched(world, "wide")
    client, other = world.client(), world.client()
    client.infer(1, timeout_us=7_000)
    client.infer(2, rows=3)
    world.pass_time(MS)
    client.run([3, 4, 5, 6, 7])
    client.many(8, 4)
    other.begin(1).send()
    world.settle()
    arrivals = record_of(lane).arrivals
    assert arrivals["rows"].tolist() == [1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert arrivals["timeout_ns"].tolist()[:2] == [7 * MS, 1_000 * MS]
    assert arrivals["at_ns"].tolist() == [0, 0] + [MS] * 10
    assert arrivals["session"].tolist() == [client.session.index] * 11 + [other.session.index]
    assert len(arrivals) == lane.stats.received


def test_what_is_refused_is_seen_too(world: World) -> None:
    lane = watched(world, "narrow")
    client = world.client()
    client.run(list(range(1, 30)), "narrow")
    assert lane.stats.refused > 0
    assert len(record_of(lane).arrivals) == 29
    world.settle()


def test_texts_count_by_rows(world: World) -> None:
    lane = watched(world, "text")
    world.client().texts(1, [3, 8])
    world.settle()
    assert record_of(lane).arrivals["rows"].tolist() == [2]


def test_the_model_is_described_as_far_as_it_is_known(world: World) -> None:
    lane = watched(world, "wide")
    about = record_of(lane).about
    assert (about["max_rows"], about["sla_ns"]) == (4, 1_000 * MS)
    client = world.client()
    for rid in range(1, 5):
        client.infer(rid)
        world.settle()
    assert record_of(lane).about["service"].keys() == {"mean_ns", "deviation_ns"}


def test_shadows_are_in_the_statistics(make_world: MakeWorld) -> None:
    shadows = ["greedy", "fixed:2"]
    world = make_world(configs=[fixed_config("wide", batching={"shadows": shadows})])
    client = world.client("wide")
    for rid in range(1, 9):
        client.infer(rid)
        world.settle()
    world.pass_time(100 * MS)
    found = world.engine.statistics()["models"][0]["shadows"]
    assert [shadow["policy"] for shadow in found] == shadows
    assert [shadow["answers"] for shadow in found] == [8, 8]


def test_nobody_is_told_without_a_wish(world: World) -> None:
    assert all(lane.witness is None for lane in world.engine.lanes)
