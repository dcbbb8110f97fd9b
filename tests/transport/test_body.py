"""Large bodies: where their bytes go, and what becomes of them when their sender is slow, split or gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import Array, ServerProcess, Wire, infer, row
from trioserve_protocol import ErrorCode, Result, ResultMany, bind_frame, cancel_frame, ping_frame

pytestmark = pytest.mark.e2e

IMAGE_NBYTES = 602_112


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def image(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 100, 150_528).astype(np.float32)


def expected(data: Array) -> Array:
    return data[:150_000].reshape(1000, 150).sum(axis=1)


def bodies_of(server: ServerProcess) -> dict[str, int]:
    found: dict[str, int] = server.statistics()["connections"]["large_bodies"]
    return found


def test_after_the_first_a_large_body_is_received_in_place_to_its_last_byte(
    server: ServerProcess, wire: Wire
) -> None:
    wire.bind("image")
    before = bodies_of(server)
    wire.send(infer(1, image(0)))
    assert (wire.result(1) == expected(image(0))).all()
    first = bodies_of(server)
    assert first["copied_nbytes"] - before["copied_nbytes"] <= 65_536
    for rid in range(2, 12):
        wire.send(infer(rid, image(rid)))
        assert (wire.result(rid) == expected(image(rid))).all()
    steady = bodies_of(server)
    assert steady["copied_nbytes"] == first["copied_nbytes"]
    assert steady["direct_nbytes"] - first["direct_nbytes"] == 10 * IMAGE_NBYTES


def test_many_large_bodies_in_a_row_are_received_in_place_too(server: ServerProcess, wire: Wire) -> None:
    wire.bind("image")
    before = bodies_of(server)
    wire.send(*(infer(rid, image(rid)) for rid in range(1, 11)))
    answers = {event.rid: event for event in wire.receive_many(10)}
    for rid, event in answers.items():
        assert isinstance(event, Result)
        assert (np.frombuffer(event.payload, np.float32) == expected(image(rid))).all()
    assert bodies_of(server)["copied_nbytes"] - before["copied_nbytes"] <= 65_536


def test_large_and_small_requests_in_turn(wire: Wire) -> None:
    wire.bind("image").bind("scale", 2)
    frames = []
    for rid in range(1, 9, 2):
        frames += [infer(rid, image(rid)), infer(rid + 1, row(rid), handle=2)]
    wire.send(*frames)
    for event in wire.receive_many(8):
        assert isinstance(event, Result)
        values = np.frombuffer(event.payload, np.float32)
        if event.rid % 2:
            assert (values == expected(image(event.rid))).all()
        else:
            assert values[0] == 2 * (event.rid - 1)


def test_two_tensors_with_padding_between_them(wire: Wire) -> None:
    wire.bind("mixed")
    a = np.array([1, 2, 3], np.uint8)
    b = np.arange(50_001, dtype=np.float32)
    payload = a.tobytes() + bytes(5) + b.tobytes() + bytes(4)
    for rid in (1, 2, 3):
        wire.send(infer(rid, payload))
        event = wire.receive()
        assert isinstance(event, Result)
        assert np.frombuffer(event.payload[:8], np.int64).tolist() == [6]
        assert np.frombuffer(event.payload[8:20], np.float32).tolist() == [0, 1, 50_000]


def test_a_batch_of_images_in_one_request(wire: Wire) -> None:
    wire.bind("image")
    images = np.stack([image(seed) for seed in range(5)])
    wire.send(infer(1, images, rows=5))
    answer = wire.result(1).reshape(5, 1000)
    for seed in range(5):
        assert (answer[seed] == expected(image(seed))).all()


def test_a_large_infer_many(wire: Wire) -> None:
    wire.bind("image")
    images = np.stack([image(seed) for seed in range(12)])
    wire.send(infer(100, images, rows=12, many=True))
    found: dict[int, Array] = {}
    while len(found) < 12:
        event = wire.receive()
        assert isinstance(event, Result | ResultMany), event
        values = np.frombuffer(event.payload, np.float32).reshape(-1, 1000)
        found |= {event.rid - 100 + index: value for index, value in enumerate(values)}
    for seed in range(12):
        assert (found[seed] == expected(image(seed))).all()


@pytest.mark.parametrize("step", [7_001, 65_536, 131_072 + 32, 602_143])
def test_a_body_in_pieces(wire: Wire, step: int) -> None:
    wire.bind("image")
    data = infer(1, image(1)) + infer(2, image(2))
    for at in range(0, len(data), step):
        wire.send(data[at : at + step])
        time.sleep(0.0005)
    answers = {event.rid: event for event in wire.receive_many(2)}
    for rid, event in answers.items():
        assert isinstance(event, Result)
        assert (np.frombuffer(event.payload, np.float32) == expected(image(rid))).all()


def test_others_are_served_while_a_body_arrives(server: ServerProcess, wire: Wire) -> None:
    wire.bind("image")
    wire.send(infer(1, image(1))[:400_000])
    with server.connect() as other:
        other.bind("image").bind("scale", 2)
        for rid in range(1, 20):
            other.send(infer(rid, row(rid), handle=2))
            assert other.result(rid)[0] == 2 * rid
        other.send(infer(30, image(30)))
        assert (other.result(30) == expected(image(30))).all()
    wire.send(infer(1, image(1))[400_000:])
    assert (wire.result(1) == expected(image(1))).all()


# ---------------------------------------------------------------- bodies nobody waits for


def test_a_deadline_in_the_middle_of_a_body_is_answered_and_the_rest_skipped(wire: Wire) -> None:
    wire.bind("image")
    data = infer(1, image(1), timeout_us=30_000)
    started = time.monotonic()
    wire.send(data[:300_000])
    wire.expect_error(ErrorCode.DEADLINE_IN_QUEUE, 1)
    assert time.monotonic() - started > 0.03
    wire.send(data[300_000:], infer(2, image(2)))
    assert (wire.result(2) == expected(image(2))).all()


def test_a_cancel_cannot_pass_a_body_but_one_from_a_refusal_is_skipped(wire: Wire) -> None:
    """A body that nobody asked for is read and dropped, whatever its length."""
    wire.bind("image")
    wire.send(infer(1, image(1), handle=9), infer(2, bytes(500_000)), infer(3, image(3)))
    wire.expect_error(ErrorCode.HANDLE_NOT_BOUND, 1)
    assert "602112" in wire.expect_error(ErrorCode.INVALID_SIZE, 2).message
    assert (wire.result(3) == expected(image(3))).all()


def test_cancelled_right_behind_its_body(wire: Wire) -> None:
    wire.bind("slow").bind("image", 2)
    wire.send(infer(1, row(60)), infer(2, image(2), handle=2), cancel_frame(2), ping_frame(9))
    assert wire.expect_error(ErrorCode.CANCELLED_BY_CLIENT, 2)
    assert wire.receive().rid == 9
    wire.result(1)


def test_more_rows_than_there_are_slots_are_shed_before_their_bytes_are_read(
    server: ServerProcess,
) -> None:
    """64 slots; each unfinished body holds its own."""
    wires = [server.connect() for _ in range(9)]
    head = infer(1, bytes(8 * IMAGE_NBYTES), rows=8)[:1000]
    for holder in wires[:8]:
        holder.send(bind_frame(90, 1, "image"), head)
        holder.receive()
        holder.expect_silence(0.02)
    wires[8].send(bind_frame(90, 1, "image"), head)
    wires[8].receive()
    error = wires[8].expect_error(ErrorCode.SHED, 1)
    assert error.retryable
    assert error.retry_after_us
    for holder in wires:
        holder.reset()
    server.assert_at_rest()


def test_the_permits_of_a_refused_body_are_free_at_once(server: ServerProcess, wire: Wire) -> None:
    wire.bind("image")
    wire.send(infer(1, bytes(3 * IMAGE_NBYTES), rows=2)[:700_000])
    wire.expect_error(ErrorCode.INVALID_SIZE, 1)
    assert all(model["permits"]["rows"] == 0 for model in server.statistics()["models"])
    wire.send(infer(1, bytes(3 * IMAGE_NBYTES), rows=2)[700_000:], ping_frame(4))
    assert wire.receive().rid == 4
