"""The tokenizer's stage: bursts out, lengths in, and what becomes of texts when it fails."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_client import Client
from tests.engine.play_models import HANDLES, text_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine import NEVER_NS
from trioserve.engine._tokenizer import BURST_ROWS
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
CRITICAL, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE = range(4)
BAD = int(ErrorCode.INVALID_BYTES)
LOST = ErrorCode.WORKER_LOST
CLOSED = ErrorCode.UNAVAILABLE


def test_bursts_wait_for_the_tokenizer(world: World) -> None:
    client = world.client()
    for rid in range(1, 5):
        client.texts(rid)
        world.turn()
    assert world.tokenizer.ranges() == [[(0, 1)], [(1, 1)]]
    world.tokenizer.finish()
    world.turn()
    assert world.tokenizer.ranges() == [[(1, 1)], [(2, 1), (3, 1)]]


def test_a_burst_is_bounded(make_world: MakeWorld) -> None:
    world = make_world(configs=[text_config(slots=600)])
    client, other = world.client("text"), world.client("text")
    client.texts(1, [5] * 30, many=True)
    other.texts(1000, [5] * 4)
    other.texts(2000, [5] * 20, many=True)
    world.turn()
    assert [batch.rows for batch in world.tokenizer.sent] == [30, 24]
    assert max(batch.rows for batch in world.tokenizer.sent) <= BURST_ROWS
    world.settle()
    assert set(client.codes()) == {OK}


def test_a_request_larger_than_a_burst_goes_alone(make_world: MakeWorld) -> None:
    world = make_world(configs=[text_config(slots=300, batching={"max_rows": 300})])
    client = world.client("text")
    client.texts(1, [5] * 290)
    client.texts(2)
    world.turn()
    assert [batch.rows for batch in world.tokenizer.sent] == [290, 1]


# ---------------------------------------------------------------- who goes first


def rids(world: World) -> list[list[int]]:
    """Ids of the requests in the bursts that the tokenizer has, oldest first."""
    lanes = world.tokenizer_stage.lanes
    return [
        [lanes[batch.model].slots.rid[first] for first, _ in batch.ranges] for batch in world.tokenizer.sent
    ]


def keep_busy(world: World, client: Client) -> None:
    """Gives the tokenizer all that it takes at a time."""
    for rid in (1, 2):
        client.texts(rid)
        world.turn()
    assert rids(world) == [[1], [2]]


def test_who_has_less_time_is_tokenized_first(make_world: MakeWorld) -> None:
    world = make_world(configs=[text_config(slots=600)])
    client = world.client("text")
    keep_busy(world, client)
    for rid in range(10, 50):
        client.texts(rid, timeout_us=500_000)
    client.texts(90, timeout_us=100_000)
    client.texts(91, timeout_us=500_000)
    client.texts(92, timeout_us=100_000)
    world.tokenizer.finish()
    world.turn()
    assert rids(world) == [[2], [90, 92, *range(10, 40)]]
    world.tokenizer.finish()
    world.turn()
    assert rids(world)[1] == [*range(40, 50), 91]
    world.settle()


def test_a_better_class_is_tokenized_first(world: World) -> None:
    client = world.client()
    keep_busy(world, client)
    for rid, klass in enumerate((SHEDDABLE, SHEDDABLE_PLUS, CRITICAL, CRITICAL_PLUS, SHEDDABLE), 10):
        client.texts(rid, flags=klass)
    world.tokenizer.finish()
    world.turn()
    assert rids(world)[1] == [13, 12, 11, 10, 14]
    world.settle()


def test_who_was_answered_meanwhile_is_not_tokenized(world: World) -> None:
    client = world.client()
    keep_busy(world, client)
    for rid, timeout_us in ((10, 500_000), (11, 100_000), (12, 300_000), (13, 300_000)):
        client.texts(rid, timeout_us=timeout_us)
    client.cancel(12)
    client.cancel(11)
    world.tokenizer.finish()
    world.turn()
    assert rids(world)[1] == [13, 10]
    world.settle()


def test_the_tokenizer_serves_the_most_urgent_model(make_world: MakeWorld) -> None:
    world = make_world(configs=[text_config(slots=600), text_config("narrow", slots=600)])
    client = world.client("text", "narrow")
    keep_busy(world, client)
    client.texts(10)
    client.texts(11, handle=HANDLES["narrow"], timeout_us=100_000)
    client.texts(12)
    for expected in ([11], [10, 12]):
        world.tokenizer.finish()
        world.turn()
        assert rids(world)[1] == expected
    world.settle()


# ---------------------------------------------------------------- how long a text takes to be ready


def crowd(make_world: MakeWorld, *, took_ns: int) -> tuple[World, Client]:
    """Full bursts take so long; 64 texts wait, and the tokenizer has all that it takes."""
    world = make_world(configs=[text_config(slots=600), text_config("narrow", slots=600)])
    world.text.service = ServiceModel({8: MS, 32: 2 * MS})
    world.text.door.classes.due_ns = NEVER_NS  # none is found to starve, which would put it first
    client = world.client("text", "narrow")
    client.texts(100, [5] * 4 * BURST_ROWS, many=True, timeout_us=900_000)
    world.turn()
    for _ in range(2):
        world.clock.ns += took_ns
        world.tokenizer.finish(took_ns=took_ns)
    client.texts(300, [5] * 2 * BURST_ROWS, many=True, timeout_us=900_000)
    world.turn()
    assert len(world.text.untokenized) == 2 * BURST_ROWS
    return world, client


def test_a_text_waits_for_those_before_it(make_world: MakeWorld) -> None:
    world, _ = crowd(make_world, took_ns=3 * MS)
    wide, narrow = (lane.scheduler.upstream_ns for lane in world.tokenizer_stage.lanes)
    assert wide is not None
    assert narrow is not None
    last_ns = world.text.slots.deadline_ns[0]
    assert wide(last_ns + 6 * MS) == narrow(last_ns + 6 * MS) == pytest.approx(2 * 3 * MS)
    assert wide(last_ns - 6 * MS) == 0
    world.settle()
    assert wide(last_ns + 6 * MS) == 0


def test_a_text_that_would_be_tokenized_too_late_is_shed(make_world: MakeWorld) -> None:
    """Though the model itself could serve many more; and not for ever, so it may come again."""
    world, client = crowd(make_world, took_ns=100 * MS)
    client.texts(10, timeout_us=950_000)
    client.texts(11, timeout_us=150_000, flags=SHEDDABLE)
    client.texts(12, timeout_us=150_000)
    assert [client.code(rid) for rid in (10, 11, 12)] == [None, ErrorCode.SHED, None]
    assert client.replies[11].frame.retryable
    world.settle()
    world.pass_time(2_000 * MS)
    client.texts(13, timeout_us=150_000, flags=SHEDDABLE)
    assert client.code(13) is None
    world.settle()


def test_one_slow_burst_does_not_close_the_door(make_world: MakeWorld) -> None:
    """Nothing waits: so nothing but a part of its time is set apart for the tokenizer."""
    world = make_world(configs=[text_config(slots=600)])
    world.text.service = ServiceModel({8: MS, 32: 2 * MS})
    client = world.client("text")
    client.texts(100, [5] * BURST_ROWS, many=True)
    world.turn()
    world.clock.ns += 500 * MS
    world.tokenizer.finish(took_ns=500 * MS)
    client.texts(1, timeout_us=50_000)
    assert client.code(1) is None
    world.settle()


def test_one_bad_text_fails_its_request(world: World) -> None:
    client = world.client()
    client.texts(1)
    client.texts(2, [4, 5, 6])
    client.texts(3)
    world.turn()
    world.tokenizer.finish(failures=[(2, BAD, "not UTF-8"), (3, BAD, "neither")])
    assert client.codes() == [None, ErrorCode.INVALID_BYTES, None]
    assert client.replies[2].message == "not UTF-8"
    world.settle()
    assert client.codes() == [OK, ErrorCode.INVALID_BYTES, OK]


def test_a_bad_text_of_a_cancelled_request(world: World) -> None:
    client = world.client()
    client.texts(1)
    world.turn()
    client.cancel(1)
    world.tokenizer.finish(failures=[(0, BAD, "too late")])
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT]
    world.check_rest()


def test_a_burst_that_fails_as_a_whole(world: World) -> None:
    client = world.client()
    client.texts(1, [3, 4])
    client.texts(2)
    world.turn()
    world.tokenizer.finish(code=int(ErrorCode.INTERNAL), message="out of memory")
    assert client.codes() == [ErrorCode.INTERNAL] * 2
    assert client.replies[1].message == "out of memory"
    world.check_rest()


def test_a_burst_without_lengths_is_corrupt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.tokenizer, "_tokenize", lambda *_: None)
    client = world.client()
    client.texts(1)
    world.turn()
    world.tokenizer.finish()
    assert client.code(1) == ErrorCode.CORRUPT_IPC


# ---------------------------------------------------------------- its death


def test_texts_with_a_dead_tokenizer_are_answered_and_held(world: World) -> None:
    client = world.client()
    for rid in range(1, 4):
        client.texts(rid)
        world.turn()
    assert world.text.announced_rows == 3
    world.tokenizer.die()
    world.turn()
    assert client.codes() == [LOST, None, None], "the second one was not begun"
    assert world.text.announced_rows == 2
    assert world.text.texts.taken == 3
    world.check()
    world.tokenizer_stage.reaped(restarting=True)
    assert world.text.texts.taken == 2
    world.tokenizer.start()
    world.settle()
    assert client.codes() == [LOST, OK, OK]
    world.check_rest()


def test_who_cancels_what_a_dead_tokenizer_had_not_begun_leaves_nothing_behind(world: World) -> None:
    client = world.client()
    for rids in ((1,), (2, 3)):
        for rid in rids:
            client.texts(rid)
        world.turn()
    client.cancel(3)
    world.tokenizer.die()
    world.turn()
    assert client.codes() == [LOST, None, ErrorCode.CANCELLED_BY_CLIENT]
    assert world.text.texts.taken == 2
    client.cancel(2)
    world.tokenizer_stage.reaped(restarting=True)
    world.tokenizer.start()
    world.check_rest()


def test_a_tokenizer_that_dies_while_it_is_sent_to(world: World) -> None:
    client = world.client()
    client.texts(1)
    client.texts(2)
    world.tokenizer.die()
    world.engine.decide(world.clock.ns)
    assert client.codes() == [None, None]
    world.check()
    world.tokenizer_stage.reaped(restarting=True)
    world.tokenizer.start()
    world.settle()
    assert client.codes() == [OK, OK]


def test_a_tokenizer_gone_for_good_leaves_what_is_tokenized(world: World) -> None:
    client = world.client()
    client.infer(100)
    world.turn()
    client.texts(1)
    world.turn()
    world.tokenizer.finish()
    client.texts(2)
    world.turn()
    client.texts(3)
    payload = client.text_body(4, [5], many=False)
    body = client.begin(4, model="text", payload=payload)
    world.tokenizer.die()
    world.tokenizer_stage.reaped(restarting=False)
    assert client.codes((1, 2, 3, 4)) == [None, LOST, CLOSED, CLOSED]
    assert body.accepted.abandoned
    client.texts(5)
    assert client.code(5) == CLOSED
    world.settle()
    assert client.codes((100, 1)) == [OK, OK]


# ---------------------------------------------------------------- announced to the executor


def test_the_executor_waits_a_moment_for_a_burst_that_is_nearly_done(world: World) -> None:
    lane = world.text
    lane.service = ServiceModel({1: 5 * MS})
    lane.mean_way_ns = MS
    client = world.client()
    client.texts(1)
    world.turn()
    world.clock.ns += MS // 2
    client.texts(2)
    world.turn()
    world.tokenizer.finish()
    world.turn()
    assert not world.executor.sent
    world.clock.ns += MS // 2
    world.tokenizer.finish()
    world.turn()
    assert world.executor.ranges() == [[(0, 2)]]


def test_the_time_of_a_burst_is_learned(world: World) -> None:
    client = world.client()
    client.texts(1)
    world.turn()
    world.clock.ns += 3 * MS
    world.tokenizer.finish()
    assert world.text.mean_way_ns == 3 * MS
