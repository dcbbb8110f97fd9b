"""Workers beside each other: of the same models and memory, each with a process and a link of its own."""

import os
import signal

import numpy as np
import pytest
import trio

from trioserve.execution import ReadyWorker, StageBatch, StageResult, WorkerModel, WorkerSpec, start_worker
from trioserve.memory import Slab

pytestmark = pytest.mark.slow


async def run(worker: ReadyWorker, seq: int, slot: int) -> StageResult:
    worker.link.send_nowait(StageBatch(0, seq, ((slot, 1),)))
    while (result := worker.link.receive_nowait()) is None:
        await trio.lowlevel.wait_readable(worker.link.fileno())
    return result


async def test_two_workers_of_the_same_models(affine: WorkerModel) -> None:
    spec = WorkerSpec(kind="executor", models=(affine,))
    outputs: np.ndarray = Slab(affine.arena, affine.layout).outputs[0]
    with trio.fail_after(20):
        first, second = await start_worker(spec, 1), await start_worker(spec, 2)
        try:
            assert (await run(first, 1, 5)).code == (await run(second, 1, 6)).code == 0
            assert outputs[5:7, 0].tolist() == [11, 13]
            first.link.kill("it does not answer")
            await first.ending()
            ending = await first.reaped()
            assert ending == ("killed: it does not answer", False)
            assert (await run(second, 2, 7)).code == 0
            os.kill(second.info.pid, signal.SIGKILL)
            await second.ending()
            assert await second.reaped() == ("killed by SIGKILL", True)
        finally:
            with trio.move_on_after(10, shield=True):
                for worker in (first, second, second):
                    await worker.discard()
    assert first.link.fileno() == second.link.fileno() == -1
