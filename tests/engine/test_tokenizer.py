"""The tokenizer's stage: bursts out, lengths in, and what becomes of texts when it fails."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import text_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine._tokenizer import BURST_ROWS
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
BAD = int(ErrorCode.INVALID_BYTES)
LOST = ErrorCode.WORKER_LOST


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
    assert client.codes() == [LOST, LOST, None]
    assert world.text.announced_rows == 1
    assert world.text.texts.taken == 3
    world.check()
    world.tokenizer_stage.reaped(restarting=True)
    assert world.text.texts.taken == 1
    world.tokenizer.start()
    world.settle()
    assert client.code(3) == OK


def test_a_tokenizer_that_dies_while_it_is_sent_to(world: World) -> None:
    client = world.client()
    client.texts(1)
    client.texts(2)
    world.tokenizer.die()
    world.engine.decide(world.clock.ns)
    assert client.codes() == [LOST, LOST]
    world.check()


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
    assert client.codes((1, 2, 3, 4)) == [None, LOST, LOST, LOST]
    assert body.accepted.abandoned
    client.texts(5)
    assert client.code(5) == LOST
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
