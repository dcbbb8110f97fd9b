"""Admission: when one comparison is enough, and what the rule is told when it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.admission import Account
from trioserve.batching import ServiceModel
from trioserve.config import ServerLimits
from trioserve.engine import NEVER_NS, Lane
from trioserve.engine._door import Room
from trioserve_protocol import CLASS_MASK, ErrorCode

OK, SHED = ErrorCode.OK, ErrorCode.SHED


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A model of batches of 4 in 5 ms, another on the same executor, and a default deadline of 1 s."""
    batching = {"max_rows": 4}
    world = make_world(
        configs=[
            fixed_config("wide", slots=1024, batching=batching),
            fixed_config("narrow", slots=1024, batching=batching),
        ]
    )
    for lane in world.engine.lanes:
        lane.service = ServiceModel({1: 4 * MS, 4: 5 * MS}, {1: 40_000, 4: 50_000})
    return world


def wide(world: World) -> Lane:
    return world.lane("wide")


def test_nothing_is_asked_of_a_model_that_nothing_is_known_of(world: World) -> None:
    lane = wide(world)
    lane.service = ServiceModel({})
    assert (lane.calm_rows, lane.calm_ns) == (NEVER_NS, 0)
    client = world.client()
    client.infer(1, timeout_us=1)
    assert client.waiting == {1}
    world.pass_time(MS)


def test_calm_is_what_takes_a_part_of_the_default_deadline(world: World) -> None:
    """Half of 1 s holds 100 batches; a margin of a quarter, and two models on one executor, leave about 35."""
    lane = wide(world)
    assert 100 <= lane.calm_rows <= 160
    assert lane.calm_ns == 500 * MS


def test_while_it_is_calm_the_rule_is_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = wide(world)
    monkeypatch.setattr(lane.door, "reserve", None)
    client = world.client()
    client.infer(1)
    client.infer(2, rows=3)
    client.run(range(10, 40))
    client.many(50, 4)
    assert all(code is None for code in client.codes())
    world.settle()


@pytest.mark.parametrize("timeout_us", [6_000, 499_000])
def test_a_short_deadline_is_looked_at(world: World, timeout_us: int) -> None:
    lane = wide(world)
    client = world.client()
    client.infer(1, timeout_us=timeout_us)
    assert lane.door._offered == 1
    assert client.waiting == {1}
    world.settle()


def test_after_the_rule_was_asked_every_request_is_looked_at_for_a_while(world: World) -> None:
    lane = wide(world)
    client = world.client()
    client.run(range(1, 201), timeouts_us=200_000)
    assert SHED in client.codes()
    assert lane.calm_rows == 0
    assert world.lane("narrow").calm_rows == 0
    world.settle(step_ns=5 * MS)
    client.infer(300)
    world.settle(step_ns=1100 * MS)
    client.infer(301)
    world.settle()
    assert lane.calm_rows > 0


def test_who_has_time_enough_leaves_the_fast_path_open(world: World) -> None:
    """Though the rule is asked about them."""
    lane, client = wide(world), world.client()
    client.infer(1, flags=3)
    client.run(range(2, 202))
    client.infer(202, timeout_us=400_000)
    assert lane.door._offered == 202
    assert lane.calm_rows >= 100
    assert not lane.scheduler.is_tense(world.clock.ns)
    world.settle()


def test_what_is_reserved_is_what_is_under_way(world: World) -> None:
    lane = wide(world)
    client = world.client()
    client.run(range(1, 201))
    assert lane.scheduler.reserved == 200
    client.cancel()
    client.infer(300, timeout_us=400_000)
    assert lane.gate.rows.taken == 1
    assert lane.scheduler.reserved == 1
    world.settle()


def test_the_cap_is_from_the_model(world: World) -> None:
    """1.25 s of batches of 4 in 5 ms are 1000 rows."""
    lane = wide(world)
    assert lane.scheduler.rule.cap_units == 1000
    clients = [world.client() for _ in range(5)]
    for client in clients:
        client.run(range(1, 251))
    codes = [code for client in clients for code in client.codes()]
    assert codes.count(SHED) >= 250
    assert lane.gate.rows.taken <= 1000
    for client in clients:
        client.cancel()


def test_beyond_the_credit_nothing_is_reserved(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=12))
    lane = world.lane("wide")
    lane.service = ServiceModel({1: MS, 4: MS})
    lane.door.alarm()
    client = world.client()
    for first in (1, 6, 11, 16):
        client.run(range(first, first + 5))
    assert client.codes().count(ErrorCode.CREDIT_EXCEEDED) == 8
    assert len(client.waiting) == lane.gate.rows.taken == 12
    world.settle()


def test_refusals_of_a_run_say_when_to_come_each_at_another_time(world: World) -> None:
    client = world.client()
    client.run(range(1, 201), timeouts_us=50_000)
    shed = [reply.frame for reply in client.replies.values()]
    assert len(shed) > 100
    times = [frame.retry_after_us for frame in shed]
    assert times == sorted(times)
    assert len(set(times)) > len(times) // 2
    world.settle()


def test_a_frame_of_many_that_is_shed_comes_again_when_there_is_room_for_all(world: World) -> None:
    """4 rows in 5 ms, of which 30 % are promised: 4.2 ms a row."""
    client = world.client()
    client.run(range(1, 201), timeouts_us=50_000)
    before_us = max(reply.frame.retry_after_us for reply in client.replies.values())
    client.many(300, 20, timeout_us=50_000)
    reply = client.replies[300].frame
    assert reply.retry_after_us - before_us == pytest.approx(20 * 4_167, rel=0.01)
    world.settle()


@pytest.mark.parametrize(
    ("waiting", "timeout_ms", "wanted"), [(1, 10, 0), (4, 14, 3), (12, 21, 0), (12, 24, 2), (12, 50, 4)]
)
def test_what_one_model_promised_another_does_not_break(
    world: World, waiting: int, timeout_ms: int, wanted: int
) -> None:
    """The more urgent one goes first, as far as the other one's requests can still be answered in time."""
    client = world.client()
    client.infer(1)
    world.turn()
    client.run(range(2, 2 + waiting), model="narrow", timeouts_us=timeout_ms * 1_000)
    promised = set(client.waiting)
    assert len(promised) == 1 + waiting
    client.run(range(100, 200), timeouts_us=9_500)
    admitted = client.waiting - promised
    assert len(admitted) == wanted
    assert wide(world).scheduler.shed_ns == world.clock.ns
    while world.executor.sent or wide(world).queue.rows:
        if not world.executor.sent:
            world.pass_time(MS // 10)
            continue
        world.clock.ns += 4 * MS + (world.executor.sent[0].rows - 1) * MS // 3
        world.executor.finish()
        world.turn()
    assert {client.replies[rid].code for rid in promised | admitted} == {OK}


def test_who_comes_after_the_other_models_requests_does_not_put_them_off(world: World) -> None:
    client = world.client()
    client.run(range(1, 9), model="narrow", timeouts_us=20_000)
    client.run(range(10, 14), timeouts_us=40_000)
    assert len(client.waiting) == 12
    world.settle(step_ns=MS)


def test_a_slow_sender_does_not_have_others_refused(world: World) -> None:
    lane = wide(world)
    lane.mean_way_ns = 1e12
    client = world.client()
    body = client.begin(1, timeout_us=100_000)
    assert client.waiting == {1}
    body.send()
    world.settle()


def test_a_body_that_does_not_come_teaches_nothing(world: World) -> None:
    lane = wide(world)
    client = world.client()
    client.begin(1, timeout_us=20_000)
    client.infer(2)
    world.pass_time(MS)
    client.infer(3, timeout_us=9_500)
    tense(world)
    world.pass_time(30 * MS)
    assert client.codes([1, 3]) == [ErrorCode.DEADLINE_IN_QUEUE] * 2
    assert lane.scheduler._dropped == 1
    world.settle()


def test_room_is_counted_once_and_only_for_whom_it_came_in_time() -> None:
    room = Room()
    room.was_there(10)
    room.shed(20, 3)
    room.shed(9, 5)
    room.was_there(10)
    assert room.left == 3
    room.was_there(10)
    assert room.left == 3


# ---------------------------------------------------------------- no worker


def test_while_the_worker_is_gone_only_those_are_admitted_who_have_time_for_another_one(world: World) -> None:
    client, lane = world.client(), wide(world)
    world.executor_stage.lose("died")
    world.clock.ns += 10 * MS
    assert not lane.scheduler.occupancy.idle
    for rid in range(1, 30):
        client.infer(rid, timeout_us=60_000)
    client.run(range(30, 60), timeouts_us=60_000)
    assert set(client.codes()) == {SHED}
    assert min(reply.frame.retry_after_us for reply in client.replies.values()) > 30_000
    client.infer(100, timeout_us=110_000)
    assert client.waiting == {100}
    world.executor_stage.reaped(restarting=True)
    world.clock.ns += 80 * MS
    world.start_workers()
    client.infer(101, timeout_us=60_000)
    assert client.waiting == {100, 101}
    world.settle()


def test_a_worker_is_expected_when_the_last_one_came(world: World) -> None:
    occupancy = world.executor_stage.occupancy
    for after_ms, expected_ms in ((300, 100), (5, 300), (100, 100)):
        begun_ns = world.clock.ns
        world.executor_stage.lose("died")
        assert occupancy.free_ns == [begun_ns + expected_ms * MS]
        world.executor_stage.reaped(restarting=True)
        world.clock.ns += after_ms * MS
        occupancy.look(world.clock.ns)
        assert occupancy.free_ns[0] > world.clock.ns
        world.start_workers()
        assert occupancy.idle
        assert occupancy.free_ns == [0]


def missed(world: World) -> int:
    """Promises that were found broken, all models together."""
    return sum(lane.scheduler._dropped for lane in world.engine.lanes)


def tense(world: World, *, is_tense: bool = True) -> World:
    for lane in world.engine.lanes:
        lane.scheduler._tense_ns = world.clock.ns if is_tense else -(10**12)
    return world


@pytest.mark.parametrize("is_tense", [True, False])
def test_who_waited_in_the_queue_was_promised_to_be_served(
    world: World,
    is_tense: bool,  # noqa: FBT001 - a parameter
) -> None:
    client = tense(world, is_tense=is_tense).client()
    client.infer(1)
    world.turn()
    client.infer(2, timeout_us=40_000)
    world.pass_time(50 * MS)
    assert client.waiting == {1}
    assert missed(world) == is_tense
    world.settle()


def test_who_waited_for_a_worker_was_not_promised_one(world: World) -> None:
    client = tense(world).client()
    client.run(range(1, 5))
    world.turn()
    client.run(range(5, 9), timeouts_us=30_000)
    client.run(range(9, 13), timeouts_us=204_500)
    world.executor_stage.lose("died")
    world.pass_time(40 * MS)
    assert missed(world) == 0
    world.executor_stage.reaped(restarting=True)
    world.clock.ns += 160 * MS
    world.start_workers()
    tense(world)
    world.turn()
    z, kg = wide(world).scheduler.margins.z, wide(world).scheduler.margins.kg
    world.clock.ns += 5 * MS
    world.executor.finish()
    assert missed(world) == 0
    assert (wide(world).scheduler.margins.z, wide(world).scheduler.margins.kg) == (z, kg)
    world.settle()


# ---------------------------------------------------------------- what is still to come


def test_a_payload_that_takes_its_time_has_less_of_it(world: World) -> None:
    door = wide(world).door
    assert door.is_calm(1, 600 * MS, 0, 100 * MS)
    assert not door.is_calm(1, 600 * MS, 0, 101 * MS)
    assert door.is_calm(1, 700 * MS, 0, 10_000 * MS), "at most a part of its time"


def test_one_text_of_a_lesser_class_does_not_close_the_fast_path(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    asked: list[int] = []
    door = world.text.door
    reserve = door.reserve

    def counted(account: Account | None, flags: int, *rest: Any) -> tuple[int, ErrorCode]:
        asked.append(flags & CLASS_MASK)
        return reserve(account, flags, *rest)

    monkeypatch.setattr(door, "reserve", counted)
    lane, client = world.text, world.client()
    lane.service = ServiceModel({1: MS, 64: 2 * MS, 1024: 12 * MS})
    for rid in range(1, 21):
        client.texts(rid, flags=3 if rid == 10 else 0)
        world.turn()
        world.clock.ns += MS
        world.settle()
        assert lane.mean_way_ns > 0
        assert lane.calm_rows > 0
        world.clock.ns += 100 * MS
    assert asked == [3]
    assert set(client.codes()) == {OK}


@pytest.mark.parametrize("mean_way_ns", [0, 2 * MS, 3_600_000 * MS], ids=["unknown", "usual", "spoilt"])
def test_a_body_that_stalls_has_nobody_refused_for_long(make_world: MakeWorld, mean_way_ns: int) -> None:
    """It is announced for in an hour, and its sender says no more."""
    world = make_world(configs=(fixed_config("wide", slots=256),))
    lane = world.lane("wide")
    lane.service = ServiceModel({1: 20 * MS, 4: 20 * MS})
    lane.mean_way_ns = float(mean_way_ns)
    body = world.client().begin(1, rows=200, many=True, timeout_us=3_600_000_000)
    client = world.client()
    client.infer(2, timeout_us=60_000)
    assert lane.stats.refused == 1
    world.pass_time(lane.default_deadline_ns // 4 + 2 * MS)
    client.infer(3, timeout_us=60_000)
    assert lane.stats.refused == 1
    assert lane.scheduler.announced == 0
    body.send()
    assert lane.queue.rows == 201
    world.settle()
    assert lane.scheduler.announced == 0
