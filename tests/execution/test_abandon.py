"""Batches that nobody waits for any more, in real workers: a graph and a patient model are ended, the next is not."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.execution.slow_graph import FOREVER, write_slow_graph
from tests.execution.test_supervise import Watch, supervised
from trioserve.backends import LoadContext, OnnxBackend, signature_of
from trioserve.execution import InProcessStage, StageBatch, StageLink, WorkerModel
from trioserve.memory import Arena, Slab, plan_slab
from trioserve_protocol import ErrorCode

MakeModel = Callable[..., WorkerModel]

CANCELLED = ErrorCode.CANCELLED
LIMIT_S = 10.0
"""What is seen is 1 ms, 5 ms for Python code; without the order these batches run for an hour."""

BUSY_S = 0.05
"""Processor time after which a worker is seen to run its batch."""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[WorkerModel]:
    """The slow graph over an arena of its own; slot n has n rounds, slot 0 runs for ever."""
    config = write_slow_graph(tmp_path)
    layout = plan_slab(signature_of(config), 64)
    arena = Arena.create(layout.total_nbytes, "test")
    slab = Slab(arena, layout)
    slab.poison(0, 64)
    slab.inputs[0][...] = np.arange(64)[:, None]
    slab.inputs[0][0] = FOREVER
    yield WorkerModel(config, layout, arena)
    arena.close()


def cpu_s(pid: int) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def busy(pid: int) -> None:
    """Until a worker is computing."""
    start_s = cpu_s(pid)
    while cpu_s(pid) - start_s < BUSY_S:  # noqa: ASYNC110  the kernel tells nobody
        await trio.sleep(0.005)


async def took_to_end(watch: Watch, seq: int) -> float:
    """Seconds from the order to the result, which says that the batch was cancelled."""
    link = link_of(watch)
    before = time.monotonic()
    link.abandon(seq)
    result = await watch.result()
    assert (result.seq, result.code) == (seq, CANCELLED)
    return time.monotonic() - before


def link_of(watch: Watch) -> StageLink:
    assert watch.link is not None
    return watch.link


@pytest.mark.slow
async def test_a_graph_is_ended_between_two_nodes_and_the_next_batch_runs(slow: WorkerModel) -> None:
    slab = Slab(slow.arena, slow.layout)
    async with supervised(slow, depth=2) as watch:
        for seq in (1, 11):
            link_of(watch).send_nowait(StageBatch(0, seq, ((0, 1),)))
            link_of(watch).send_nowait(StageBatch(0, seq + 1, ((7, 2),)))
            await busy(watch.ready[0].pid)
            assert await took_to_end(watch, seq) < LIMIT_S
            link_of(watch).abandon(seq)  # late: must not hit the next one
            result = await watch.result()
            assert (result.seq, result.code, result.failures) == (seq + 1, 0, ())
        assert slab.outputs[0][7:9, 3].tolist() == [7, 8]
        assert (slab.outputs[0][:1].view(np.uint8) == 0xA5).all()


@pytest.mark.slow
async def test_a_batch_that_is_queued_in_the_worker_is_not_run(slow: WorkerModel) -> None:
    slab = Slab(slow.arena, slow.layout)
    async with supervised(slow, depth=3) as watch:
        link = link_of(watch)
        for seq, slot in ((1, 0), (2, 9), (3, 10)):
            link.send_nowait(StageBatch(0, seq, ((slot, 1),)))
        skipped: list[int] = []
        link.on_skipped = skipped.append
        await busy(watch.ready[0].pid)
        link.abandon(2)
        while not skipped:  # noqa: ASYNC110  the supervisor's own task tells the link
            await trio.sleep(0.001)
        assert skipped == [2]
        assert link.receive_nowait() is None
        await took_to_end(watch, 1)
        assert (await watch.result()).code == CANCELLED
        assert (await watch.result()).code == 0
        assert (slab.outputs[0][9].view(np.uint8) == 0xA5).all()
        assert slab.outputs[0][10, 0] == 10


@pytest.mark.slow
async def test_a_python_model_that_looks_is_ended_and_one_that_does_not_is_not(make_model: MakeModel) -> None:
    model = make_model("Patient")
    slab = Slab(model.arena, model.layout)
    slab.inputs[0][:3] = [[3600.0] * 4, [0.0] * 4, [-0.2] * 4]
    async with supervised(model) as watch:
        link_of(watch).send_nowait(StageBatch(0, 1, ((0, 1),)))
        await busy(watch.ready[0].pid)
        assert await took_to_end(watch, 1) < LIMIT_S
        assert (await watch.run(2, (1, 1))).code == 0
        link_of(watch).send_nowait(StageBatch(0, 3, ((2, 1),)))
        await busy(watch.ready[0].pid)
        link_of(watch).abandon(3)
        assert (await watch.result()).code == CANCELLED
        assert (await watch.run(4, (1, 1))).code == 0


@pytest.mark.slow
async def test_orders_do_not_keep_a_worker_from_stopping(slow: WorkerModel) -> None:
    async with supervised(slow, grace_s=10.0) as watch:
        link_of(watch).send_nowait(StageBatch(0, 1, ((0, 1),)))
        await busy(watch.ready[0].pid)
        link = link_of(watch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.result)
            link.abandon(1)


@pytest.mark.slow
async def test_an_order_after_the_order_to_stop_is_obeyed(slow: WorkerModel) -> None:
    began = time.monotonic()
    async with supervised(slow, grace_s=10.0) as watch:
        link = link_of(watch)
        link.send_nowait(StageBatch(0, 1, ((0, 1),)))
        await busy(watch.ready[0].pid)
        order = trio.lowlevel.spawn_system_task(abandon_when_stopping, link)
        assert order is not None
    assert time.monotonic() - began < 8


async def abandon_when_stopping(link: StageLink) -> None:
    for _ in range(20):
        await trio.sleep(0.05)
        link.abandon(1)


class Calling(OnnxBackend):
    """Runs a batch as told, and calls the test while it does."""

    on_infer: Callable[[], None] = staticmethod(lambda: None)

    def infer(self, inputs: tuple[object, ...], out: tuple[object, ...]) -> tuple[object, ...]:
        self.on_infer()
        return super().infer(inputs, out)


def test_in_process_an_order_reaches_the_run_it_names(slow: WorkerModel) -> None:
    backend = Calling()
    backend.load(LoadContext(slow.config, signature_of(slow.config)))
    stage = InProcessStage([slow], [backend], depth=1)
    backend.on_infer = lambda: stage.abandon(1)
    codes = []
    for seq in (1, 2):
        stage.send_nowait(StageBatch(0, seq, ((5, 1),)))
        result = stage.receive_nowait()
        assert result is not None
        codes.append(result.code)
    assert codes == [CANCELLED, 0]
    stage.close()


def test_bisecting_ends_when_nobody_waits(affine: WorkerModel, capsys: pytest.CaptureFixture[str]) -> None:
    from trioserve.testing import FakeBackend

    stages: list[InProcessStage] = []

    def fails(_: object) -> bool:
        if len(backend.calls) == 3:
            stages[0].abandon(1)
        return True

    backend = FakeBackend(fails)
    backend.load(LoadContext(affine.config, signature_of(affine.config)))
    stages.append(InProcessStage([affine], [backend]))
    stages[0].send_nowait(StageBatch(0, 1, ((0, 16),)))
    result = stages[0].receive_nowait()
    assert result is not None
    assert (result.code, result.failures) == (CANCELLED, ())
    assert len(backend.calls) <= 5, "16 rows that all fail take 31 calls"
    stages[0].close()
    assert "raised on a batch" in capsys.readouterr().err
