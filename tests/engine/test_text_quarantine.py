"""Texts that kill the tokenizer: suspected, tokenized alone, refused."""

from __future__ import annotations

import pytest

from tests.engine.play_client import Client
from tests.engine.world import World
from trioserve.engine._quarantine import TextQuarantine
from trioserve_protocol import ErrorCode, encode_bytes

OK = ErrorCode.OK
LOST = ErrorCode.WORKER_LOST


def restart(world: World) -> None:
    """The tokenizer dies of what it has, and the next one is there."""
    world.tokenizer.die()
    world.turn()
    world.tokenizer_stage.reaped(restarting=True)
    world.tokenizer.start()
    world.turn()


def known(world: World) -> tuple[int, int]:
    found = world.text.text_quarantine.snapshot()
    return found["suspects"], found["refused"]


def bursts(world: World) -> list[int]:
    return [batch.rows for batch in world.tokenizer.sent]


def killed_once(world: World) -> Client:
    """Texts 5 to 7 were with a tokenizer when it died."""
    client = world.client()
    client.texts(5, [5] * 3, many=True)
    world.turn()
    restart(world)
    assert client.codes([5, 6, 7]) == [LOST] * 3
    assert known(world) == (3, 0)
    return client


def test_a_text_that_kills_the_tokenizer_twice_is_refused(world: World) -> None:
    client = killed_once(world)
    for rid in (1, 6, 2):
        client.texts(rid)
    world.turn()
    assert bursts(world) == [1, 1], "the suspect is alone"
    world.tokenizer.finish()
    restart(world)
    assert known(world) == (2, 1)
    world.settle()
    assert client.codes([1, 6, 2]) == [OK, LOST, OK]
    client.texts(6)
    client.texts(5, [5] * 3, many=False)
    world.turn()
    assert client.code(6) == ErrorCode.POISON_INPUT
    assert not client.replies[6].frame.retryable
    world.settle()
    assert client.code(5) == OK, "another request of several texts"
    assert world.engine.statistics()["models"][2]["text_quarantine"] == {
        "suspects": 2,
        "refused": 1,
        "found": 1,
    }
    world.check_rest()


def test_a_suspected_text_that_is_tokenized_is_cleared(world: World) -> None:
    client = killed_once(world)
    client.texts(5)
    client.texts(6)
    client.texts(8)
    world.settle()
    assert client.codes([5, 6, 8]) == [OK] * 3
    assert known(world) == (1, 0)


def test_who_kills_the_tokenizer_is_not_suspected_by_the_executor(world: World) -> None:
    killed_once(world)
    assert not world.text.door.quarantine.is_active
    assert not world.lane("wide").door.quarantine.is_active


def test_texts_are_told_apart_by_where_they_end(world: World) -> None:
    """Two requests of two texts with the same bytes in all."""
    client = world.client()
    one, other = encode_bytes([b"a b 1 xy", b"c d 1"]), encode_bytes([b"a b 1 x", b"yc d 1"])
    client.texts(1, [1, 1], payload=one)
    world.turn()
    restart(world)
    client.texts(2, [1, 1], payload=other)
    client.texts(3, [1, 1], payload=other)
    client.texts(4, [1, 1], payload=one)
    world.turn()
    assert bursts(world) == [4, 2]
    for rid in (2, 3, 4):
        client.cancel(rid)


def test_without_suspected_texts_nothing_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isolate", "clear"):
        monkeypatch.setattr(TextQuarantine, name, pytest.fail)
    client = world.client()
    client.texts(1, [5] * 4, many=True)
    world.settle()
    assert client.codes() == [OK] * 4
