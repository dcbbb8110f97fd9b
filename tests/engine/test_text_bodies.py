"""Large bodies of texts: received whole before it shows where each text goes."""

from __future__ import annotations

import pytest

from tests.engine.play_client import Body, Client
from tests.engine.world import MS, World
from trioserve_protocol import ErrorCode, encode_bytes, encode_bytes_fast, pad8

OK = ErrorCode.OK


def large(client: Client, rid: int, tokens: list[int], *, many: bool = False, crc: int | None = None) -> Body:
    payload = client.text_body(rid, tokens, many=many)
    return client.begin(rid, model="text", rows=len(tokens), many=many, payload=payload, crc=crc)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("piece", [1, 50, 10**6])
def test_large_texts_are_received_in_pieces(world: World, piece: int, *, many: bool) -> None:
    """What becomes of a frame does not depend on how it was cut up."""
    client = world.client()
    body = large(client, 1, [3, 4, 5], many=many)
    while not body.send(piece):
        world.turn()
        assert not world.tokenizer.sent
    world.settle()
    assert set(client.codes()) == {OK}


def test_a_body_larger_than_its_texts_can_be(world: World) -> None:
    client = world.client()
    most = world.text.max_payload_nbytes(2)
    assert client.begin(1, model="text", rows=2, payload=bytes(most + 8)).arrival is None
    assert client.code(1) == ErrorCode.INVALID_BYTES
    assert str(most) in client.replies[1].message
    longest = encode_bytes([b"x" * 4096] * 2)
    assert len(longest) <= most
    assert len(encode_bytes_fast([b"x" * 4096] * 2)) <= most
    assert pad8(most) == most


@pytest.mark.parametrize("many", [False, True])
def test_a_large_body_that_is_no_texts(world: World, *, many: bool) -> None:
    client = world.client()
    body = client.begin(1, model="text", rows=2, many=many, payload=b"\xff" * 100)
    body.send()
    assert set(client.codes()) == {ErrorCode.INVALID_BYTES}
    world.check_rest()


def test_requests_of_a_large_body_that_were_answered_take_no_room(world: World) -> None:
    client = world.client()
    body = large(client, 1, [3, 4, 5], many=True)
    client.cancel(2)
    body.send()
    assert world.text.texts.taken == 2
    world.settle()
    assert client.codes() == [OK, ErrorCode.CANCELLED_BY_CLIENT, OK]


def test_a_large_body_of_texts_expires(world: World) -> None:
    client = world.client()
    payload = client.text_body(1, [3, 4], many=False)
    client.begin(1, model="text", rows=2, payload=payload, timeout_us=1000)
    world.pass_time(2 * MS)
    assert client.code(1) == ErrorCode.DEADLINE_IN_QUEUE
    world.check_rest()


def test_a_damaged_body_of_texts(world: World) -> None:
    client = world.client()
    body = large(client, 1, [3, 4], crc=1)
    body.send()
    assert client.code(1) == ErrorCode.CRC_MISMATCH
    world.check_rest()


def test_a_large_body_for_which_the_text_region_has_no_room(crammed: World) -> None:
    client = crammed.client()
    body = client.begin(1, model="text", rows=4, many=True, payload=client.text_body(1, [5] * 4, many=True))
    assert body.send()
    assert client.codes() == [None] * 3 + [ErrorCode.SHED]
    crammed.settle()
    assert client.codes() == [OK] * 3 + [ErrorCode.SHED]
