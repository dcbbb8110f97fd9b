"""Real worker processes: started, used, killed, restarted, stopped."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from trioserve.execution import (
    ReadyInfo,
    StageBatch,
    StageLink,
    StageResult,
    WorkerLoss,
    WorkerLost,
    WorkerModel,
    WorkerSpec,
    WorkerStartError,
    supervise_worker,
)
from trioserve.execution import _spare as spare_module
from trioserve.execution._process import worker_environment
from trioserve.memory import Slab

pytestmark = pytest.mark.slow

MakeModel = Callable[..., WorkerModel]


class Watch:
    """What a supervisor has reported so far."""

    def __init__(self) -> None:
        self.ready: list[ReadyInfo] = []
        self.lost: list[WorkerLoss] = []
        self.link: StageLink | None = None
        self.spare_pid = 0
        self.pids: set[int] = set()
        self.changed = trio.Event()

    def on_ready(self, link: StageLink, info: ReadyInfo) -> None:
        self.close()
        self.link = link
        self.ready.append(info)
        self.changed.set()

    def on_lost(self, loss: WorkerLoss) -> None:
        self.lost.append(loss)
        self.changed.set()

    def on_spare(self, pid: int) -> None:
        self.spare_pid = pid
        self.pids.add(pid)
        self.changed.set()

    async def spare(self, other_than: int = 0) -> int:
        """The process id of a spare that is ready."""
        while self.spare_pid in (0, other_than):
            await self.changed.wait()
            self.changed = trio.Event()
        return self.spare_pid

    def close(self) -> None:
        if self.link is not None:
            self.link.close()

    async def until(self, ready: int, lost: int) -> None:
        while (len(self.ready), len(self.lost)) != (ready, lost):
            await self.changed.wait()
            self.changed = trio.Event()

    async def result(self) -> StageResult:
        assert self.link is not None
        while (result := self.link.receive_nowait()) is None:
            await trio.lowlevel.wait_readable(self.link.fileno())
        return result

    async def run(self, seq: int, *ranges: tuple[int, int]) -> StageResult:
        assert self.link is not None
        self.link.send_nowait(StageBatch(0, seq, ranges))
        return await self.result()


@asynccontextmanager
async def supervised(*models: WorkerModel, **given: Any) -> AsyncIterator[Watch]:
    """A worker for the models; on leaving, it is stopped and no process and no descriptor is left."""
    before = open_descriptors()
    watch = Watch()
    options: dict[str, Any] = {"kind": "executor", "restart_backoff_s": 0.01, "grace_s": 2.0} | given
    spec = WorkerSpec(models=models, **options)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            worker = partial(supervise_worker, spec, on_ready=watch.on_ready, on_lost=watch.on_lost)
            await nursery.start(partial(worker, on_spare=watch.on_spare))
            yield watch
            nursery.cancel_scope.cancel()
    watch.close()
    for pid in {info.pid for info in watch.ready} | watch.pids - {0}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert open_descriptors() <= before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_batch_crosses_and_comes_back(affine: WorkerModel) -> None:
    slab = Slab(affine.arena, affine.layout)
    async with supervised(affine) as watch:
        (info,) = watch.ready
        assert info.epoch == 1
        assert info.hop_ns > 0
        assert 1 <= info.depth <= 3
        assert [model.error for model in info.models] == [""]
        assert list(info.models[0].warmup_ns) == list(info.models[0].deviation_ns) == [1, 2, 4, 8, 16]
        result = await watch.run(1, (5, 10))
        assert (result.code, result.failures, result.rows_gathered) == (0, (), 0)
        assert slab.outputs[0][5:15, 0].tolist() == [2 * slot + 1 for slot in range(5, 15)]
        await watch.run(2, (40, 1), (20, 2))
        assert slab.outputs[0][[40, 20, 21], 3].tolist() == [81, 41, 43]
        assert (slab.outputs[0].view(np.uint8)[15:20] == 0xA5).all()


async def test_a_bad_row_fails_alone(make_model: MakeModel) -> None:
    model = make_model("Affine", args={"bad": 13.0}, max_rows=32)
    slab = Slab(model.arena, model.layout)
    slab.inputs[0][...] = np.arange(64)[:, None]
    async with supervised(model) as watch:
        ((row, _, message),) = (await watch.run(1, (0, 32))).failures
        assert (row, message) == (13, "model 'affine' raised ValueError")
        expected = [2 * slot + 1 for slot in range(32) if slot != 13]
        assert slab.outputs[0][[slot for slot in range(32) if slot != 13], 0].tolist() == expected


async def test_deaths_are_forgotten_after_a_while(affine: WorkerModel) -> None:
    async with supervised(affine, restart_window_s=1e-9, max_restarts=1) as watch:
        for death in (1, 2, 3):
            os.kill(watch.ready[-1].pid, signal.SIGKILL)
            await watch.until(ready=death + 1, lost=death)
        assert all(loss.restarting for loss in watch.lost)


async def test_a_killed_worker_is_missed_restarted_and_then_stays_down_for_a_while(
    affine: WorkerModel,
) -> None:
    slab = Slab(affine.arena, affine.layout)
    async with supervised(affine) as watch:
        assert watch.link is not None
        os.kill(watch.ready[0].pid, signal.SIGSTOP)
        watch.link.send_nowait(StageBatch(0, 1, ((0, 1),)))
        os.kill(watch.ready[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await watch.result()
        await watch.until(ready=2, lost=1)
        assert watch.lost[0][:4] == ("killed by SIGKILL", 1, True, True)
        assert [info.epoch for info in watch.ready] == [1, 2]
        assert (await watch.run(1, (6, 1))).code == 0
        assert slab.outputs[0][6, 0] == 13
        os.kill(watch.ready[1].pid, signal.SIGKILL)
        await watch.until(ready=2, lost=2)
        assert watch.lost[1][:4] == ("killed by SIGKILL", 2, False, True)
        assert 15 <= watch.lost[1].again_s <= 30
        await trio.testing.wait_all_tasks_blocked()
        assert len(watch.ready) == 2


async def test_a_worker_that_failed_is_tried_again_and_on_trial(affine: WorkerModel) -> None:
    async with supervised(affine, max_restarts=0, retry_failed_s=0.02) as watch:
        for trial in (1, 2, 3):
            os.kill(watch.ready[-1].pid, signal.SIGKILL)
            await watch.until(ready=trial + 1, lost=trial)
        assert not any(loss.restarting for loss in watch.lost)
        assert (await watch.run(1, (6, 1))).code == 0


async def test_a_spare_takes_over_and_is_replaced(
    affine: WorkerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_module, "AFTER_S", 0.01)
    async with supervised(affine, spare=1, max_restarts=100) as watch:
        for death in (1, 2):
            spare = await watch.spare()
            os.kill(watch.ready[-1].pid, signal.SIGKILL)
            await watch.until(ready=death + 1, lost=death)
            assert watch.ready[-1].pid == spare
            assert (await watch.run(1, (6, 1))).code == 0
        spare = await watch.spare()
        os.kill(spare, signal.SIGKILL)
        assert await watch.spare(other_than=spare)
        assert len(watch.lost) == 2, "the death of a spare is nobody's loss"


async def test_a_spare_that_is_being_started_is_waited_for(affine: WorkerModel) -> None:
    async with supervised(affine, spare=1, max_restarts=100, restart_backoff_s=60) as watch:
        await trio.sleep(0.01)  # it takes more than ten times that
        assert watch.spare_pid == 0
        os.kill(watch.ready[-1].pid, signal.SIGKILL)
        await watch.until(ready=2, lost=1)


async def test_a_model_may_take_its_worker_down(make_model: MakeModel) -> None:
    model = make_model("Fragile")
    Slab(model.arena, model.layout).inputs[0][3] = -1
    async with supervised(model) as watch:
        with pytest.raises(WorkerLost):
            await watch.run(1, (2, 3))
        await watch.until(ready=2, lost=1)
        assert watch.lost[0].reason == "ended with status 7"
        assert not watch.lost[0].killed


async def test_the_end_is_seen_although_a_child_of_the_models_lives(make_model: MakeModel) -> None:
    async with supervised(make_model("Forking"), max_restarts=0) as watch:
        os.kill(watch.ready[0].pid, signal.SIGKILL)
        with trio.fail_after(10):
            await watch.until(ready=1, lost=1)


async def test_what_is_queued_is_finished_when_stopped(make_model: MakeModel) -> None:
    model = make_model("Fragile")
    slab = Slab(model.arena, model.layout)
    slab.inputs[0][3] = -2
    async with supervised(model, depth=2) as watch:
        assert watch.link is not None
        watch.link.send_nowait(StageBatch(0, 1, ((3, 1),)))
        watch.link.send_nowait(StageBatch(0, 2, ((4, 1),)))
    assert slab.outputs[0][3:5, 0].tolist() == [-3, 1]


async def test_a_worker_that_does_not_stop_is_killed(make_model: MakeModel) -> None:
    model = make_model("Fragile")
    async with supervised(model, grace_s=0.05) as watch:
        os.kill(watch.ready[0].pid, signal.SIGSTOP)


async def test_signals_for_the_whole_group_do_not_end_it(affine: WorkerModel) -> None:
    async with supervised(affine) as watch:
        os.kill(watch.ready[0].pid, signal.SIGINT)
        os.kill(watch.ready[0].pid, signal.SIGTERM)
        assert (await watch.run(1, (0, 1))).code == 0


async def test_a_closed_link_ends_the_worker(affine: WorkerModel) -> None:
    async with supervised(affine, max_restarts=0) as watch:
        watch.close()
        await watch.until(ready=1, lost=1)
        assert watch.lost[0].reason == "ended with status 0"


async def test_a_corrupt_descriptor_ends_the_worker(affine: WorkerModel) -> None:
    async with supervised(affine, max_restarts=0) as watch:
        assert watch.link is not None
        watch.link.send_nowait(StageBatch(0, 1, ((64, 1),)))
        with pytest.raises(WorkerLost):
            await watch.result()
        await watch.until(ready=1, lost=1)
        assert watch.lost[0].reason == "ended with status 4"


async def test_one_bad_model_leaves_the_others(make_model: MakeModel) -> None:
    async with supervised(make_model("Broken"), make_model("Affine")) as watch:
        (info,) = watch.ready
        assert [model.error for model in info.models] == ["RuntimeError: no device", ""]
        assert watch.link is not None
        assert (await watch.run(1, (0, 1))).message == "model 'broken' failed to load"
        watch.link.send_nowait(StageBatch(1, 2, ((0, 1),)))
        assert (await watch.result()).code == 0


async def start_failing(model: WorkerModel, **options: Any) -> str:
    spec = WorkerSpec(kind="executor", models=(model,), **options)
    watch = Watch()
    with trio.fail_after(20), pytest.raises(WorkerStartError) as failed:
        await supervise_worker(spec, on_ready=watch.on_ready, on_lost=watch.on_lost)
    assert (watch.ready, watch.lost) == ([], [])
    return str(failed.value)


async def test_a_worker_that_ends_while_it_starts_is_an_error(affine: WorkerModel, tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import os; os._exit(9)")
    config = msgspec.structs.replace(affine.config, file="exits.py", directory=str(tmp_path))
    reason = await start_failing(WorkerModel(config, affine.layout, affine.arena))
    assert reason == "the worker ended while it started: ended with status 9"


async def test_a_worker_that_is_too_slow_is_an_error(affine: WorkerModel) -> None:
    assert "not ready within 0.01 s" in await start_failing(affine, start_timeout_s=0.01)


async def test_an_arena_of_another_size_is_an_error(affine: WorkerModel) -> None:
    class Lying:
        fd = affine.arena.fd
        nbytes = affine.arena.nbytes + 4096

    model = WorkerModel(affine.config, affine.layout, Lying())  # type: ignore[arg-type]
    assert "ArenaError" in await start_failing(model)


async def test_arguments_that_fit_no_message_are_an_error(make_model: MakeModel) -> None:
    assert "args large" in await start_failing(make_model("Affine", args={"factor": "x" * 200_000}))


def test_threads_are_limited_before_the_first_import(make_model: MakeModel) -> None:
    spec = WorkerSpec(kind="executor", models=(make_model(threads=3), make_model(threads=2)))
    environment = worker_environment(spec)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["RAYON_NUM_THREADS"] == "3"
    assert "site-packages" not in environment.get("PYTHONPATH", "")


ORPHAN_MAKER = """
import os, signal, sys, trio
from trioserve.execution import *
from trioserve.config import *
from trioserve.memory import *
from trioserve.backends import *
config = ModelConfig.from_json(sys.argv[1].encode())
layout = plan_slab(signature_of(config), 8)
arena = Arena.create(layout.total_nbytes, "orphan")
def ready(link, info):
    print(info.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
spec = WorkerSpec(kind="executor", models=(WorkerModel(config, layout, arena),))
async def main(): await supervise_worker(spec, on_ready=ready, on_lost=print)
trio.run(main)
"""


async def test_no_orphan_outlives_the_server(affine: WorkerModel) -> None:
    with trio.fail_after(20):
        done = await trio.run_process(
            [sys.executable, "-c", ORPHAN_MAKER, affine.config.to_json().decode()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_stdout=True,
            check=False,
        )
    assert done.returncode == -signal.SIGKILL
    with trio.fail_after(10):
        await ended(int(done.stdout.splitlines()[-1]))


async def ended(pid: int) -> None:
    """Until a process that is not a child of ours has ended; whoever adopted it may reap it late, or never."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    await trio.lowlevel.wait_readable(fd)
    os.close(fd)
