"""The class of a request on every way into a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.play_client import Client
from tests.engine.world import World
from trioserve.batching import ServiceModel
from trioserve.engine import Lane
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
CRITICAL, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE = range(4)


def sheddable_infer(client: Client) -> None:
    client.infer(1, flags=SHEDDABLE)


def sheddable_rows(client: Client) -> None:
    client.infer(1, rows=2, flags=SHEDDABLE)


def sheddable_run(client: Client) -> None:
    client.run(range(1, 6), flags=SHEDDABLE)


def sheddable_many(client: Client) -> None:
    client.many(1, 3, flags=SHEDDABLE)


def sheddable_body(client: Client) -> None:
    client.begin(1, flags=SHEDDABLE).send()


def sheddable_text(client: Client) -> None:
    client.texts(1, flags=SHEDDABLE)
    client.world.turn()
    client.world.tokenizer.finish()


def near(lane: Lane, deadline_ns: int) -> int:
    """A deadline as the queue orders it."""
    return deadline_ns & lane.queue.grain_mask


WAYS = [sheddable_infer, sheddable_rows, sheddable_run, sheddable_many, sheddable_body, sheddable_text]


@pytest.mark.parametrize("send", WAYS)
def test_a_lesser_class_is_served_later(world: World, send: Callable[[Client], None]) -> None:
    """By two default deadlines; the default class by none."""
    lane = world.text if send is sheddable_text else world.lane("wide")
    client = world.client()
    send(client)
    deadline_ns = world.clock.ns + lane.default_deadline_ns
    assert lane.queue.head_key_ns == near(lane, deadline_ns) + 2 * lane.default_deadline_ns
    if send is sheddable_text:
        client.texts(100, flags=CRITICAL)
        world.turn()
        world.tokenizer.finish()
    else:
        client.infer(100)
    assert lane.queue.head_key_ns == near(lane, deadline_ns)
    world.settle()
    assert set(client.codes()) == {OK}


@pytest.mark.parametrize("send", WAYS)
def test_a_class_that_starves_is_served_first(world: World, send: Callable[[Client], None]) -> None:
    lane = world.text if send is sheddable_text else world.lane("wide")
    classes = lane.door.classes
    classes.pending_ns[CRITICAL_PLUS] = float(world.clock.ns)
    classes.settle(world.clock.ns)
    assert classes.ranks[SHEDDABLE] == 0
    client = world.client()
    send(client)
    deadline_ns = world.clock.ns + lane.default_deadline_ns
    assert lane.queue.head_key_ns == near(lane, deadline_ns) - lane.default_deadline_ns
    world.settle()
    assert set(client.codes()) == {OK}


def test_the_classes_of_a_run_may_differ(world: World) -> None:
    world.lane("wide").service = ServiceModel({1: 1_000})
    client = world.client()
    classes = [SHEDDABLE, SHEDDABLE, CRITICAL, SHEDDABLE, CRITICAL_PLUS]
    client.run(range(1, 6), flags=classes)
    lane = world.lane("wide")
    assert [lane.slots.rid[first] for first, _ in lane.queue.peek(2, lane.slots.row_counts)] == [5, 3]
    world.settle()
    assert client.codes() == [OK] * 5


def test_a_class_does_not_change_what_a_plain_request_is(world: World) -> None:
    client = world.client()
    client.run(range(1, 5), flags=SHEDDABLE)
    assert not any(world.lane("wide").slots.special)


def test_an_old_request_overtakes_a_new_one_of_a_better_class(world: World) -> None:
    lane = world.lane("wide")
    client = world.client()
    client.infer(1, flags=SHEDDABLE, timeout_us=900_000)
    world.clock.ns += 2 * lane.default_deadline_ns // 5
    client.infer(2, flags=CRITICAL, timeout_us=3_900_000)
    assert lane.slots.rid[lane.queue.head] == 1
    world.settle()


@pytest.mark.parametrize("better", [0, 1])
def test_a_better_request_now_and_then_costs_the_others_nothing(world: World, better: int) -> None:
    """One every 2 s, and in between short ones of the default class that an idle server answers easily."""
    lane, client = world.lane("wide"), world.client()
    lane.service = ServiceModel({1: 5_200_000, 4: 11_400_000})
    for rid in range(1, 41, 2):
        if better:
            client.infer(rid, flags=CRITICAL_PLUS)
            world.settle(step_ns=5_200_000)
        world.clock.ns += 1_000_000_000
        client.infer(rid + 1, timeout_us=150_000)
        client.infer(1_000 + rid, timeout_us=150_000)
        assert client.waiting == {rid + 1, 1_000 + rid}
        world.settle(step_ns=5_200_000)
        world.clock.ns += 1_000_000_000


def test_what_the_rule_is_not_asked_about_counts_for_its_class(world: World) -> None:
    lane, client = world.lane("wide"), world.client()
    lane.service = ServiceModel({1: 4_000_000, 4: 5_000_000})
    client.run(range(1, 5))
    assert not lane.door._offered
    client.infer(5, flags=SHEDDABLE)
    assert lane.door.classes.offered[CRITICAL] > 0
    assert lane.door.classes.shares[CRITICAL] > 0
    assert lane.door.classes.overtaking[SHEDDABLE] == lane.door.classes.offered[CRITICAL]
    world.settle()
