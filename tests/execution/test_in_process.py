"""InProcessStage: a link's interface without a process."""

from collections.abc import Iterator

import pytest
import trio

from trioserve.backends import LoadContext, signature_of
from trioserve.execution import InProcessStage, StageBatch, WorkerLost, WorkerModel
from trioserve.testing import FakeBackend


@pytest.fixture
def backend(affine: WorkerModel) -> FakeBackend:
    made = FakeBackend()
    made.load(LoadContext(affine.config, signature_of(affine.config)))
    return made


@pytest.fixture
def stage(affine: WorkerModel, backend: FakeBackend) -> Iterator[InProcessStage]:
    made = InProcessStage([affine], [backend], depth=2, manual=True)
    yield made
    made.close()


def test_a_batch_runs_when_it_is_sent(affine: WorkerModel, backend: FakeBackend) -> None:
    stage = InProcessStage([affine], [backend])
    stage.send_nowait(StageBatch(0, 1, ((2, 3),)))
    assert backend.calls == [3]
    with pytest.raises(trio.WouldBlock):
        stage.send_nowait(StageBatch(0, 2, ((2, 3),)))
    assert stage.receive_nowait() is not None
    stage.close()


def test_or_when_the_test_says_so(stage: InProcessStage, backend: FakeBackend) -> None:
    stage.send_nowait(StageBatch(0, 1, ((2, 3),)))
    stage.send_nowait(StageBatch(0, 2, ((9, 1),)))
    assert (stage.in_flight, stage.depth, backend.calls) == (2, 2, [])
    assert stage.receive_nowait() is None
    stage.run_next()
    assert backend.calls == [3]
    result = stage.receive_nowait()
    assert result is not None
    assert result.seq == 1
    assert stage.in_flight == 1


async def test_it_polls_like_a_worker(stage: InProcessStage) -> None:
    stage.send_nowait(StageBatch(0, 1, ((2, 3),)))
    stage.run_next()
    with trio.fail_after(10):
        await trio.lowlevel.wait_readable(stage.fileno())


def test_it_can_die(stage: InProcessStage) -> None:
    stage.send_nowait(StageBatch(0, 1, ((2, 3),)))
    stage.die()
    with pytest.raises(WorkerLost):
        stage.receive_nowait()
