"""Bringing a model up in a worker: its slab, its backend or tokenizer, its warm-up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from trioserve.backends import LoadContext, LoadError, OutputError, create_backend, signature_of
from trioserve.execution._descriptors import ModelBounds, StageBatch, StageResult
from trioserve.execution._messages import ModelReady
from trioserve.execution._report import report
from trioserve.execution._runner import ModelRunner, Runner
from trioserve.execution._self_test import self_test
from trioserve.execution._warmup import NOTHING_TIMED, ServiceTimes, measure_costs, warm_up_rows, warm_up_text
from trioserve.memory import Slab
from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from trioserve.backends import Backend
    from trioserve.config import ModelConfig
    from trioserve.execution._messages import LoadStage, WorkerKind
    from trioserve.memory import Arena, SlabLayout


class Loaded(NamedTuple):
    """A model that a worker has tried to load."""

    runner: Runner
    bounds: ModelBounds
    ready: ModelReady


class _Progress:
    """How far a model has come."""

    stage: LoadStage = "load"
    doubt = ""


class RefusingRunner:
    """Stands in for a model that could not be loaded."""

    def __init__(self, message: str) -> None:
        self._message = message

    def run(self, batch: StageBatch) -> StageResult:
        """Refuse the batch."""
        now = time.monotonic_ns()
        return StageResult(
            batch.model, batch.seq, int(ErrorCode.INTERNAL), self._message, now, now, now, now, 0, 0
        )

    def interrupt(self) -> None:
        """Nothing runs."""

    def resume(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing to let go of."""


def load_model(kind: WorkerKind, config: ModelConfig, arena: Arena, layout: SlabLayout) -> Loaded:
    """Load a model, or say why not. Never raises for what the model does.

    Args:
        kind: What the worker does for it.
        config: Of the model.
        arena: Where its slab is.
        layout: Of its slab.
    """
    began = time.monotonic_ns()
    slab = Slab(arena, layout)
    times = NOTHING_TIMED
    error = ""
    progress = _Progress()
    try:
        runner, times = _tokenizer(config, slab) if kind == "tokenizer" else _executor(config, slab, progress)
    except LoadError as failure:
        error = str(failure)
        runner = RefusingRunner(f"model {config.name!r} failed to load")
    except BaseException as failure:  # noqa: ASYNC103, BLE001  user code: whatever it raises is told to its author
        error = f"{type(failure).__name__}: {failure}"
        report(f"model {config.name!r} failed to load", failure)
        runner = RefusingRunner(f"model {config.name!r} failed to load")
    took_ns = time.monotonic_ns() - began
    ready = ModelReady(
        config.name, took_ns, times.warmup_ns, error, times.deviation_ns, progress.stage, progress.doubt
    )
    return Loaded(runner, _bounds(kind, config, layout), ready)


def _bounds(kind: WorkerKind, config: ModelConfig, layout: SlabLayout) -> ModelBounds:
    if kind == "tokenizer":
        return ModelBounds(
            layout.slots, layout.slots, max_length=config.max_text_nbytes, text_nbytes=layout.text_nbytes
        )
    return executor_bounds(config, layout)


def executor_bounds(config: ModelConfig, layout: SlabLayout) -> ModelBounds:
    """What a batch may name of a model that is executed."""
    if config.tokenizer is not None:
        return ModelBounds(layout.slots, config.batching.max_rows, max_length=layout.max_tokens, min_length=1)
    return ModelBounds(layout.slots, config.batching.max_rows)


def _executor(config: ModelConfig, slab: Slab, progress: _Progress) -> tuple[Runner, ServiceTimes]:
    backend = create_backend(config)
    backend.load(LoadContext(config, signature_of(config)))
    progress.stage = "warm-up"
    runner, times = prepare_runner(config, backend, slab)
    progress.stage = "self-test"
    names = tuple(region.name for region in slab.layout.outputs)
    progress.doubt = self_test(config, backend, runner.staging, names)
    return runner, times


def prepare_runner(config: ModelConfig, backend: Backend, slab: Slab) -> tuple[ModelRunner, ServiceTimes]:
    """A runner for a loaded backend, warmed up as configured, and the service times that were seen.

    Raises:
        LoadError: The model returns something else than its signature says.
    """
    runner = ModelRunner(config, backend, slab)
    if not config.warmup:
        return runner, NOTHING_TIMED
    names = tuple(region.name for region in slab.layout.outputs)
    times = NOTHING_TIMED
    try:
        if config.tokenizer is None:
            times = warm_up_rows(config, backend, runner.staging, names)
        else:
            times = warm_up_text(config, backend, runner.staging, names, slab.layout.max_tokens)
    except OutputError as error:
        raise LoadError(f"{config.name}: {error}") from error
    except BaseException as error:  # noqa: ASYNC103, BLE001  as above
        # A model may well refuse rows of zeros; whether it serves real ones only real ones tell.
        report(f"model {config.name!r} raised while it was warmed up", error)
    if times.warmup_ns:
        runner.costs = measure_costs(times.warmup_ns, runner.staging)
    return runner, times


def _tokenizer(config: ModelConfig, slab: Slab) -> tuple[Runner, ServiceTimes]:
    # Only a tokenizer's process pays for the import.
    from trioserve.execution._tokenizer import load_tokenizer

    runner = load_tokenizer(config, slab)
    return runner, runner.warm_up() if config.warmup else NOTHING_TIMED
