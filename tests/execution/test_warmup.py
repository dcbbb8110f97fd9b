"""Warm-up: which sizes, what is measured, what a model may do meanwhile."""

from collections.abc import Callable

import pytest

from trioserve.backends import Arrays, LoadContext, LoadError, create_backend, signature_of
from trioserve.config import BatchingConfig, ModelConfig
from trioserve.execution import WorkerModel
from trioserve.execution._load import load_model, prepare_runner
from trioserve.execution._warmup import TEXT_TOKENS, Took, row_sizes, summary, text_sizes
from trioserve.memory import Slab
from trioserve.testing import FakeBackend


@pytest.mark.parametrize(
    ("max_rows", "sizes"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_rows_double_up_to_the_largest_batch(max_rows: int, sizes: list[int]) -> None:
    assert row_sizes(max_rows) == sizes


def text_config(**fields: object) -> ModelConfig:
    batching = BatchingConfig(**{"buckets": [16, 64, 256], "max_rows": 8} | fields)  # type: ignore[arg-type]
    return ModelConfig(name="t", backend="onnx", file="t.onnx", batching=batching)


def test_texts_come_alone_and_in_full_batches() -> None:
    assert text_sizes(text_config(max_tokens=64), 256) == [
        *[(1, 8), (1, 16), (1, 32), (1, 64), (2, 32), (4, 16), (8, 8), (1, 128), (1, 256)]
    ]
    assert text_sizes(text_config(max_tokens=64), 20) == [(1, 8), (1, 16), (1, 20), (3, 20), (4, 16), (8, 8)]
    assert text_sizes(text_config(buckets=[]), 5) == [(1, 5), (8, 5)]


def test_every_bucket_is_warmed_up_alone_and_full() -> None:
    buckets = [12, 48, 100]
    for max_tokens, full in ((200, [8, 4, 2]), (0, [8, 8, 8])):
        sizes = text_sizes(text_config(buckets=buckets, max_tokens=max_tokens), 256)
        assert {(1, length) for length in buckets} <= set(sizes)
        assert set(zip(full, buckets, strict=True)) <= set(sizes)
    tokens = [rows * length for rows, length in text_sizes(text_config(), 256)]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 8 * 256 > TEXT_TOKENS


def test_deviation_is_the_mean_of_the_distances_and_stalls_do_not_count_whole() -> None:
    assert summary([100] * 6) == Took(100, 1)
    assert summary([100]) == Took(100, 3)
    assert summary([90, 100, 110]) == Took(100, 6)
    assert summary([100, 100, 100, 100, 50_000]) == Took(100, 17)


def prepared(
    model: WorkerModel, fails: Callable[[Arrays], bool] | None = None
) -> tuple[FakeBackend, dict[int, int]]:
    backend = FakeBackend(fails)
    backend.load(LoadContext(model.config, signature_of(model.config)))
    runner, (warmup_ns, deviation_ns) = prepare_runner(model.config, backend, Slab(model.arena, model.layout))
    assert warmup_ns.keys() == deviation_ns.keys()
    assert all(ns >= 0 for ns in deviation_ns.values())
    assert bool(warmup_ns) == (runner.costs.call_ns < float("inf"))
    return backend, warmup_ns


def test_every_size_is_called_before_it_is_timed(affine: WorkerModel) -> None:
    backend, warmup_ns = prepared(affine)
    assert list(warmup_ns) == [1, 2, 4, 8, 16]
    assert all(ns > 0 for ns in warmup_ns.values())
    assert all(backend.calls.count(rows) >= 2 for rows in warmup_ns)


def test_rows_of_clients_are_not_touched(affine: WorkerModel) -> None:
    before = bytes(affine.arena.view)
    prepared(affine)
    assert bytes(affine.arena.view) == before


def test_it_can_be_left_out(make_model: Callable[..., WorkerModel]) -> None:
    backend, warmup_ns = prepared(make_model(warmup=False))
    assert (backend.calls, warmup_ns) == ([], {})


def test_a_model_may_refuse_zeros(affine: WorkerModel, capsys: pytest.CaptureFixture[str]) -> None:
    _, warmup_ns = prepared(affine, lambda inputs: bool((inputs[0] == 0).all()))
    assert warmup_ns == {}
    assert "raised while it was warmed up" in capsys.readouterr().err


def test_a_model_may_even_try_to_leave(affine: WorkerModel, capsys: pytest.CaptureFixture[str]) -> None:
    def leave(_: Arrays) -> bool:
        raise SystemExit(3)

    _, warmup_ns = prepared(affine, leave)
    assert warmup_ns == {}
    assert "SystemExit: 3" in capsys.readouterr().err


def test_wrong_outputs_are_found_before_anybody_asks(make_model: Callable[..., WorkerModel]) -> None:
    model = make_model("Wrong", args={"how": "dtype"})
    backend = create_backend(model.config)
    backend.load(LoadContext(model.config, signature_of(model.config)))
    with pytest.raises(LoadError, match="wrong: output 'y' is float64"):
        prepare_runner(model.config, backend, Slab(model.arena, model.layout))


@pytest.mark.parametrize(
    ("class_name", "error"),
    [
        ("Affine", ""),
        ("Broken", "RuntimeError: no device"),
        ("Leaving", "SystemExit: 3"),
        ("Absent", "'Absent' is not a trioserve.Model"),
    ],
)
def test_a_model_that_does_not_load_is_refused_by_name(
    affine: WorkerModel, class_name: str, error: str
) -> None:
    import msgspec

    from trioserve.execution import StageBatch

    config = msgspec.structs.replace(affine.config, class_name=class_name, name="m")
    loaded = load_model("executor", config, affine.arena, affine.layout)
    assert error in loaded.ready.error
    assert bool(error) == bool(loaded.ready.error)
    result = loaded.runner.run(StageBatch(0, 1, ((0, 1),)))
    assert result.message == ("model 'm' failed to load" if error else "")
    assert bool(result.code) == bool(error)
