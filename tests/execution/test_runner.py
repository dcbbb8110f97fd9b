"""ModelRunner, by way of InProcessStage: in place, gathered or split; bisecting; wrong outputs."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trioserve.backends import Arrays, LoadContext, create_backend, signature_of
from trioserve.execution import InProcessStage, StageBatch, StageResult, WorkerModel
from trioserve.execution import _runner as module
from trioserve.execution._costs import Costs
from trioserve.execution._runner import ModelRunner
from trioserve.memory import Slab
from trioserve.testing import FakeBackend
from trioserve_protocol import ErrorCode

MODEL_RAISED = int(ErrorCode.MODEL_RAISED)
ONE = ((5, 12),)
THREE = ((40, 3), (5, 1), (20, 8))


class Rig:
    """A fake backend over a slab, and the results of the batches it ran."""

    def __init__(self, model: WorkerModel, fails: Callable[[Arrays], bool] | None = None) -> None:
        self.backend = FakeBackend(fails)
        self.backend.load(LoadContext(model.config, signature_of(model.config)))
        self.slab = Slab(model.arena, model.layout)
        self.runner = ModelRunner(model.config, self.backend, self.slab)

    def run(self, ranges: tuple[tuple[int, int], ...]) -> StageResult:
        return self.runner.run(StageBatch(0, 1, ranges))

    def expect(self, ranges: tuple[tuple[int, int], ...], bad: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Every slot of the batch holds its own result, and no other slot anything but poison."""
        poison = np.frombuffer(b"\xa5\xa5\xa5\xa5", np.float32)[0]
        named = {slot for first, count in ranges for slot in range(first, first + count)}
        for slot, row in enumerate(self.slab.outputs[0]):
            if slot not in bad:
                assert set(row.tolist()) == {4.0 * slot if slot in named else poison}, slot


@pytest.fixture
def rig(affine: WorkerModel) -> Rig:
    return Rig(affine)


def test_one_range_runs_in_place(rig: Rig) -> None:
    result = rig.run(ONE)
    rig.expect(ONE)
    assert rig.backend.calls == [12]
    assert (result.code, result.failures, result.rows_gathered, result.padding) == (0, (), 0, 0)
    assert result.started_ns <= result.input_ns <= result.run_ns <= result.finished_ns


def test_several_ranges_are_gathered_where_calls_are_dear(rig: Rig) -> None:
    rig.runner.costs = Costs(call_ns=1e9, copy_ns_per_byte=1)
    result = rig.run(THREE)
    rig.expect(THREE)
    assert rig.backend.calls == [12]
    assert result.rows_gathered == 12


def test_several_ranges_run_one_by_one_where_calls_are_cheap(rig: Rig) -> None:
    rig.runner.costs = Costs(call_ns=0, copy_ns_per_byte=1)
    result = rig.run(THREE)
    rig.expect(THREE)
    assert rig.backend.calls == [3, 1, 8]
    assert result.rows_gathered == 0


COSTS = {"gathered": Costs(1e9, 1), "split": Costs(0, 1)}


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("ranges", [ONE, THREE])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bad=st.sets(st.integers(0, 11), max_size=12))
def test_only_the_rows_at_fault_fail(
    affine: WorkerModel, costs: Costs, ranges: tuple[tuple[int, int], ...], bad: set[int]
) -> None:
    slots = [slot for first, count in ranges for slot in range(first, first + count)]
    bad_slots = {slots[position] for position in bad}
    rig = Rig(affine, lambda inputs: bool(np.isin(inputs[0][:, 0], list(bad_slots)).any()))
    rig.runner.costs = costs
    rig.slab.outputs[0].view(np.uint8)[...] = 0xA5
    result = rig.run(ranges)
    assert result.code == 0
    assert [(row, code) for row, code, _ in result.failures] == [(row, MODEL_RAISED) for row in sorted(bad)]
    rig.expect(ranges, bad_slots)
    assert len(rig.backend.calls) <= 3 + 2 * 12


def test_clients_are_told_the_kind_of_error_and_no_more(
    affine: WorkerModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(affine, lambda inputs: bool((inputs[0] == 7).any()))
    ((row, _, message),) = rig.run(ONE).failures
    assert (row, message) == (2, "model 'affine' raised FakeModelError")
    assert "told to fail" in capsys.readouterr().err


def test_bisecting_has_an_end(affine: WorkerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BISECT_LIMIT_NS", 0)
    rig = Rig(affine, lambda inputs: bool((inputs[0] == 7).any()))
    assert [row for row, _, _ in rig.run(ONE).failures] == list(range(12))
    assert rig.backend.calls == [12]


def test_inputs_cannot_be_written_by_the_model(affine: WorkerModel) -> None:
    def scribble(inputs: Arrays) -> bool:
        inputs[0][...] = 0
        return False

    rig = Rig(affine, scribble)
    assert len(rig.run(ONE).failures) == 12
    assert rig.slab.inputs[0][5].tolist() == [5] * 4


@pytest.fixture
def stages() -> Iterator[list[InProcessStage]]:
    made: list[InProcessStage] = []
    yield made
    for stage in made:
        stage.close()


def run_class(model: WorkerModel, stages: list[InProcessStage]) -> StageResult:
    backend = create_backend(model.config)
    backend.load(LoadContext(model.config, signature_of(model.config)))
    stages.append(InProcessStage([model], [backend]))
    stages[-1].send_nowait(StageBatch(0, 1, ((0, 2),)))
    result = stages[-1].receive_nowait()
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("class_name", "args", "match"),
    [
        ("Wrong", {"how": "dtype"}, "output 'y' is float64 [1, 4], expected float32 [1, 4]"),
        ("Wrong", {"how": "shape"}, "output 'y' is float32 [1, 2], expected float32 [1, 4]"),
        ("Pair", {"form": "short"}, "infer returned 1 arrays, expected 2"),
        ("Pair", {"form": "list"}, "infer returned list; expected an array, a tuple or a dict of arrays"),
    ],
)
def test_what_a_model_must_not_return(
    make_model: Callable[..., WorkerModel],
    stages: list[InProcessStage],
    class_name: str,
    args: dict[str, Any],
    match: str,
) -> None:
    result = run_class(make_model(class_name, args=args), stages)
    assert [row for row, _, _ in result.failures] == [0, 1]
    assert all(message.endswith(match) for _, _, message in result.failures), result.failures


def test_several_tensors(make_model: Callable[..., WorkerModel], stages: list[InProcessStage]) -> None:
    model = make_model("Pair")
    slab = Slab(model.arena, model.layout)
    slab.inputs[0][:2] = [[1, 2, 3], [4, 5, 6]]
    slab.inputs[1][:2] = [10, 20]
    result = run_class(model, stages)
    assert result.failures == ()
    assert slab.outputs[0][:2].tolist() == [16, 35]
    assert slab.outputs[1][:2].tolist() == [20, 40]


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError])
def test_what_is_no_exception_fails_its_row_and_not_the_worker(
    affine: WorkerModel, capsys: pytest.CaptureFixture[str], raised: type[BaseException]
) -> None:
    def leave(inputs: Arrays) -> bool:
        if (inputs[0] == 7).any():
            raise raised
        return False

    ((row, code, message),) = Rig(affine, leave).run(ONE).failures
    assert (row, code, message) == (2, MODEL_RAISED, f"model 'affine' raised {raised.__name__}")
    assert raised.__name__ in capsys.readouterr().err
