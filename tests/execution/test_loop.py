"""DataLoop: a worker's end of the data pair."""

import socket
from collections.abc import Callable, Iterator

import pytest

from trioserve.execution import StageBatch, StageResult
from trioserve.execution._descriptors import (
    CorruptDescriptor,
    ModelBounds,
    pack_batch,
    pack_echo,
    unpack_result,
)
from trioserve.execution._loop import DataLoop
from trioserve.execution._orders import MAX_WAITING, Orders
from trioserve_protocol import ErrorCode

EPOCH = 3


class Runner:
    def __init__(self) -> None:
        self.ran: list[StageBatch] = []
        self.interrupted: list[bool] = []
        self.on_run: Callable[[], None] = lambda: None

    def run(self, batch: StageBatch) -> StageResult:
        self.ran.append(batch)
        self.on_run()
        return StageResult(batch.model, batch.seq, 0, "", 1, 2, 3, 4, 0, 0)

    def interrupt(self) -> None:
        self.interrupted.append(True)

    def resume(self) -> None:
        self.interrupted.append(False)

    def close(self) -> None:
        self.ran.clear()


class Rig:
    def __init__(self) -> None:
        self.server, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.settimeout(1)
        self.worker.settimeout(1)
        self.runners = [Runner(), Runner()]
        bounds = [ModelBounds(100, 50)] * 2
        self.orders = Orders()
        self.loop = DataLoop(
            self.worker, epoch=EPOCH, runners=self.runners, bounds=bounds, orders=self.orders
        )

    def serve(self, seq: int) -> StageResult:
        self.server.send(pack_batch(StageBatch(0, seq, ((0, 1),)), EPOCH))
        assert self.loop.step()
        answer = memoryview(self.server.recv(20_000))
        return unpack_result(answer, epoch=EPOCH, model=0, seq=seq, rows=1)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.server.close()
    made.worker.close()


def test_a_batch_is_run_by_its_model_and_answered(rig: Rig) -> None:
    batch = StageBatch(1, 9, ((4, 6),))
    rig.server.send(pack_batch(batch, EPOCH))
    assert rig.loop.step()
    assert rig.runners[0].ran == []
    assert rig.runners[1].ran == [batch]
    answer = memoryview(rig.server.recv(20_000))
    assert unpack_result(answer, epoch=EPOCH, model=1, seq=9, rows=6).code == 0


def test_an_echo_comes_back_unchanged(rig: Rig) -> None:
    rig.server.send(pack_echo(EPOCH, 5))
    assert rig.loop.step()
    assert rig.server.recv(100) == pack_echo(EPOCH, 5)


def test_serves_what_is_queued_and_then_ends(rig: Rig) -> None:
    for seq in range(3):
        rig.server.send(pack_batch(StageBatch(0, seq, ((0, 1),)), EPOCH))
    rig.worker.shutdown(socket.SHUT_RD)
    rig.loop.serve()
    assert [batch.seq for batch in rig.runners[0].ran] == [0, 1, 2]
    assert len(rig.server.recv(20_000)) > 0


def test_ends_when_the_server_is_gone(rig: Rig) -> None:
    rig.server.send(pack_batch(StageBatch(0, 1, ((0, 1),)), EPOCH))
    rig.server.close()
    rig.loop.serve()
    assert len(rig.runners[0].ran) == 1


@pytest.mark.parametrize(
    "message",
    [
        b"\0",
        bytes(16_392),
        pack_batch(StageBatch(0, 8, ((0, 1),)), EPOCH + 1),
        pack_batch(StageBatch(2, 8, ((0, 1),)), EPOCH),
        pack_batch(StageBatch(0, 8, ((99, 2),)), EPOCH),
        pack_batch(StageBatch(0, 7, ((0, 1),)), EPOCH),
    ],
)
def test_corruption_ends_it(rig: Rig, message: bytes) -> None:
    rig.server.send(pack_batch(StageBatch(0, 7, ((0, 1),)), EPOCH))
    rig.loop.step()
    rig.server.send(message)
    with pytest.raises(CorruptDescriptor):
        rig.loop.step()
    assert len(rig.runners[0].ran) == 1


def test_a_queued_batch_that_nobody_waits_for_is_skipped(rig: Rig) -> None:
    rig.orders.abandon(2)
    assert rig.serve(1).code == 0
    assert rig.serve(2).code == ErrorCode.CANCELLED
    assert rig.serve(3).code == 0
    assert [batch.seq for batch in rig.runners[0].ran] == [1, 3]
    assert rig.runners[0].interrupted == []


def test_a_running_batch_is_interrupted_once_and_the_next_one_is_not(rig: Rig) -> None:
    runner = rig.runners[0]

    def order_twice() -> None:
        rig.orders.abandon(1)
        rig.orders.abandon(1)

    runner.on_run = order_twice
    rig.serve(1)
    runner.on_run = lambda: None
    assert runner.interrupted == [True, False]
    rig.serve(2)
    assert runner.interrupted == [True, False]


def test_an_order_that_comes_late_hits_nothing(rig: Rig) -> None:
    rig.serve(1)
    rig.orders.abandon(1)
    runner = rig.runners[0]

    def order() -> None:
        rig.orders.abandon(1)

    runner.on_run = order
    assert rig.serve(2).code == 0
    assert runner.interrupted == []


def test_orders_for_batches_that_never_come_are_bounded(rig: Rig) -> None:
    for seq in range(10, 10 + 2 * MAX_WAITING):
        rig.orders.abandon(seq)
    assert len(rig.orders._waiting) == MAX_WAITING
