"""StageLink: credits, order, death, corruption."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from trioserve.execution import StageBatch, StageLink, StageResult, WorkerLost
from trioserve.execution._descriptors import ModelBounds, pack_echo, pack_result, unpack_batch
from trioserve.execution._messages import Abandon, decode_for_worker

EPOCH = 4
BOUNDS = [ModelBounds(100, 50)]


class Pair:
    def __init__(self, depth: int = 2) -> None:
        ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        self.worker.settimeout(1)
        self.link = StageLink(ours, epoch=EPOCH, depth=depth)

    def take(self) -> StageBatch:
        return unpack_batch(memoryview(self.worker.recv(20_000)), epoch=EPOCH, bounds=BOUNDS)

    def answer(self, seq: int, rows: int = 1, **fields: Any) -> None:
        result = StageResult(0, seq, 0, "", 1, 2, 3, 4, 0, 0)._replace(**fields)
        self.worker.send(pack_result(result, EPOCH, rows))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.link.close()
    made.worker.close()


def batch(seq: int, rows: int = 1) -> StageBatch:
    return StageBatch(0, seq, ((3, rows),))


def test_a_batch_goes_out_and_its_result_comes_in(pair: Pair) -> None:
    assert pair.link.receive_nowait() is None
    pair.link.send_nowait(batch(1, rows=5))
    assert pair.take() == batch(1, rows=5)
    pair.answer(1, rows=5, rows_gathered=2)
    result = pair.link.receive_nowait()
    assert result is not None
    assert (result.seq, result.rows_gathered) == (1, 2)
    assert pair.link.receive_nowait() is None


def test_a_credit_returns_with_the_result_only(pair: Pair) -> None:
    pair.link.send_nowait(batch(1))
    pair.link.send_nowait(batch(2))
    assert pair.link.in_flight == pair.link.depth == 2
    pair.take()
    with pytest.raises(trio.WouldBlock):
        pair.link.send_nowait(batch(3))
    pair.answer(1)
    with pytest.raises(trio.WouldBlock):
        pair.link.send_nowait(batch(3))
    pair.link.receive_nowait()
    assert pair.link.in_flight == 1
    pair.link.send_nowait(batch(3))


def test_the_descriptor_polls_readable_for_results_and_for_death(pair: Pair) -> None:
    import select

    poll = select.poll()
    poll.register(pair.link.fileno(), select.POLLIN)
    assert not poll.poll(0)
    pair.link.send_nowait(batch(1))
    pair.answer(1)
    assert poll.poll(0)
    pair.link.receive_nowait()
    assert not poll.poll(0)
    pair.worker.close()
    assert poll.poll(0)


def test_a_dead_worker_is_lost_in_both_directions(pair: Pair) -> None:
    pair.link.send_nowait(batch(1))
    pair.worker.close()
    with pytest.raises(WorkerLost) as lost:
        pair.link.receive_nowait()
    assert lost.value.retryable
    with pytest.raises(WorkerLost):
        pair.link.receive_nowait()
    with pytest.raises(WorkerLost):
        pair.link.send_nowait(batch(2))


def test_an_orderly_end_is_the_end_as_well(pair: Pair) -> None:
    pair.worker.close()
    with pytest.raises(WorkerLost, match="the worker is gone"):
        pair.link.receive_nowait()


def test_results_before_the_end_are_received(pair: Pair) -> None:
    pair.link.send_nowait(batch(1))
    pair.take()
    pair.answer(1)
    pair.worker.close()
    assert pair.link.receive_nowait() is not None
    with pytest.raises(WorkerLost):
        pair.link.receive_nowait()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\0", id="one byte"),
        pytest.param(bytes(16_392), id="too long"),
        pytest.param(bytes(60_000), id="longer than the buffer"),
        pytest.param(pack_echo(EPOCH, 1), id="an echo"),
        pytest.param(pack_result(StageResult(0, 2, 0, "", 1, 2, 3, 4, 0, 0), EPOCH, 1), id="another batch"),
        pytest.param(
            pack_result(StageResult(0, 1, 0, "", 1, 2, 3, 4, 0, 0), EPOCH - 1, 1), id="an old epoch"
        ),
    ],
)
def test_a_corrupt_message_drops_the_worker(pair: Pair, message: bytes) -> None:
    pair.link.send_nowait(batch(1))
    pair.take()
    pair.worker.send(message)
    with pytest.raises(WorkerLost, match="corrupt descriptor"):
        pair.link.receive_nowait()
    assert pair.link.fileno() == -1
    assert pair.worker.recv(10) == b""


def test_a_result_nobody_asked_for_drops_the_worker(pair: Pair) -> None:
    pair.answer(1)
    with pytest.raises(WorkerLost, match="nothing is in flight"):
        pair.link.receive_nowait()


def test_numbers_of_batches_rise(pair: Pair) -> None:
    pair.link.send_nowait(batch(7))
    with pytest.raises(AssertionError, match="this is a bug"):
        pair.link.send_nowait(batch(7))


def test_a_batch_too_large_takes_no_credit(pair: Pair) -> None:
    with pytest.raises(ValueError, match="at most 16384"):
        pair.link.send_nowait(StageBatch(0, 1, tuple((i, 1) for i in range(2100))))
    assert pair.link.in_flight == 0


def test_the_deepest_link_never_fills_the_socket() -> None:
    """Credits are below what default buffers hold, also at the largest message."""
    pair = Pair(depth=3)
    for seq in range(3):
        pair.link.send_nowait(StageBatch(0, seq, tuple((i, 1) for i in range(2040))))
    pair.link.close()
    pair.worker.close()


def test_close_is_idempotent(pair: Pair) -> None:
    pair.link.close()
    pair.link.close()
    with pytest.raises(WorkerLost):
        pair.link.send_nowait(batch(1))


def test_what_a_dead_worker_had_sent_is_received_before_its_death_is_seen(pair: Pair) -> None:
    pair.link.send_nowait(batch(1))
    pair.link.send_nowait(batch(2))
    pair.take()
    pair.answer(1)
    pair.worker.close()  # with batch 2 unread: the kernel reports a reset first
    result = pair.link.receive_nowait()
    assert result is not None
    assert result.seq == 1
    with pytest.raises(WorkerLost):
        pair.link.receive_nowait()


def test_an_order_goes_by_the_control_pair_and_is_dropped_where_there_is_no_room(pair: Pair) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0)
    link = StageLink(pair.link._sock, epoch=EPOCH, depth=1, control=ours)
    link.abandon(7)
    assert decode_for_worker(theirs.recv(1000)) == Abandon(7)
    for seq in range(2_000):
        link.abandon(seq)
    theirs.close()
    link.abandon(8)
    ours.close()
    link.abandon(9)
    pair.link.abandon(9)  # without one
