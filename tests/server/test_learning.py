"""Service-time models of a start: made of the warm-up and of what was learnt before, and saved when that is due."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from trioserve.batching import ServiceModel
from trioserve.config import ModelConfig
from trioserve.execution import ModelReady
from trioserve.server import _learning as module
from trioserve.server._learning import SAVE_EVERY_NS, Learning, seeded
from trioserve.server._learnt import LearntStore

WARM = {1: 1_000_000, 8: 2_000_000}
DEVIATION = {1: 10_000, 8: 20_000}


def learnt(factor: float, batches: int = 100) -> dict[str, Any]:
    model = ServiceModel({size: int(ns * factor) for size, ns in WARM.items()}, DEVIATION)
    model.k, model.batches = 2.0, batches
    return model.to_state()


def seed(state: dict[str, Any] | None, warmup_ns: dict[int, int] = WARM) -> ServiceModel:
    return seeded("m", ServiceModel(warmup_ns, DEVIATION), sorted(warmup_ns), state)


def test_without_a_past_the_warm_up_is_all() -> None:
    model = seed(None)
    assert (model.mean_ns(1), model.k) == (1_000_000, ServiceModel({}).k)


def test_a_past_that_agrees_is_half_of_the_start() -> None:
    model = seed(learnt(1.5))
    assert (model.mean_ns(1), model.mean_ns(8), model.k) == (1_250_000, 2_500_000, 2.0)
    assert model.deviation_ns(8) == 20_000


@pytest.mark.parametrize("factor", [0.1, 0.45, 2.1, 1000.0])
def test_a_past_that_is_far_off_is_ignored(factor: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert seed(learnt(factor)).mean_ns(1) == 1_000_000
    assert "learnt_model_ignored" in capsys.readouterr().out


@pytest.mark.parametrize("state", [{"version": 99}, {}, learnt(1) | {"mean_ns": [1]}])
def test_a_past_that_is_none_is_refused(state: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert seed(state).mean_ns(1) == 1_000_000
    assert "learnt_model_refused" in capsys.readouterr().out


def test_without_a_warm_up_the_past_is_all() -> None:
    assert seed(learnt(1.5), {}).mean_ns(1) == 1_500_000
    assert not seed(ServiceModel({}).to_state(), {}).known


class Rig:
    """A model, its folder and what is learnt of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "m.py").write_text("model")
        config = ModelConfig(name="m", backend="python", file="m.py", directory=str(folder))
        self.folder = folder / "state"
        self.lane: Any = SimpleNamespace(config=config, max_rows=8, service=ServiceModel({}))

    def learning(self) -> Learning:
        return Learning(LearntStore(self.folder))

    async def start(self, learning: Learning, nursery: trio.Nursery) -> ServiceModel:
        """As a worker that becomes ready."""
        await learning.load([self.lane], nursery)
        self.lane.service = learning.seed(self.lane, ModelReady("m", 1, WARM, "", DEVIATION))
        model: ServiceModel = self.lane.service
        return model

    def teach(self, batches: int) -> None:
        for _ in range(batches):
            self.lane.service.observe(1, 1_500_000)

    def files(self) -> int:
        return len(list(self.folder.glob("*"))) if self.folder.is_dir() else 0


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_what_one_start_learns_the_next_one_knows(rig: Rig) -> None:
    async with trio.open_nursery() as nursery:
        learning = rig.learning()
        await rig.start(learning, nursery)
        await learning.save([rig.lane])
        assert rig.files() == 0, "nothing was learnt"
        rig.teach(200)
        await learning.save([rig.lane])
        before = rig.lane.service.mean_ns(1)
        rig.lane.service = ServiceModel({})
        model = await rig.start(rig.learning(), nursery)
    assert model.mean_ns(1) == pytest.approx((1_000_000 + before) / 2, abs=2)


async def test_a_restarted_worker_goes_on_with_what_the_lost_one_taught(rig: Rig) -> None:
    async with trio.open_nursery() as nursery:
        learning = Learning(None)
        await rig.start(learning, nursery)
        rig.teach(200)
        before = rig.lane.service.mean_ns(1)
        assert before > 1_300_000
        model = learning.seed(rig.lane, ModelReady("m", 1, WARM, "", DEVIATION))
    assert model.mean_ns(1) == pytest.approx((1_000_000 + before) / 2, abs=2)


async def test_a_serving_server_saves_now_and_then(rig: Rig) -> None:
    async with trio.open_nursery() as nursery:
        learning = rig.learning()
        await rig.start(learning, nursery)
        rig.teach(5)
        learning.note([rig.lane], 1_000)
        await settled(nursery)
        assert rig.files() == 0, "the first minute is not over"
        learning.note([rig.lane], 2_000 + SAVE_EVERY_NS)
        await settled(nursery)
        assert rig.files() == 1
        for path in rig.folder.glob("*"):
            path.unlink()
        learning.note([rig.lane], 3_000 + 2 * SAVE_EVERY_NS)
        await settled(nursery)
        assert rig.files() == 0, "nothing new was learnt"


async def settled(nursery: trio.Nursery) -> None:
    with trio.fail_after(5):  # noqa: ASYNC912  nothing to wait for if the thread has ended
        while nursery.child_tasks:  # noqa: ASYNC110  a thread is waited for
            await trio.sleep(0.001)


async def test_a_file_system_that_hangs_keeps_no_server_from_stopping(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(module, "SAVE_LIMIT_S", 0.02)
    monkeypatch.setattr(LearntStore, "save", lambda *_: release.wait(10))
    async with trio.open_nursery() as nursery:
        learning = rig.learning()
        await rig.start(learning, nursery)
        rig.teach(5)
        with trio.fail_after(2):
            await learning.save([rig.lane])
    release.set()


async def test_a_model_whose_file_is_missing_is_left_to_its_worker(rig: Rig) -> None:
    (Path(rig.lane.config.directory) / "m.py").unlink()
    async with trio.open_nursery() as nursery:
        learning = rig.learning()
        await rig.start(learning, nursery)
        rig.teach(5)
        await learning.save([rig.lane])
    assert rig.files() == 0
