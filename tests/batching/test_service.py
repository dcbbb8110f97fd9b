"""How long a batch runs: means and deviations at the warmed-up sizes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import ServiceModel
from trioserve.batching._service import CLIP, FAR_GAIN, FIRST_K, GAIN, LEAST_K, MAX_LEARNT, MISSES, MOST_K

MS = 1_000_000


def test_between_the_sizes_of_the_warm_up_it_is_a_line() -> None:
    model = ServiceModel({1: 1_100, 8: 1_800, 32: 6_600})
    assert [model.mean_ns(size) for size in (1, 8, 32)] == [1_100, 1_800, 6_600]
    assert model.mean_ns(2) == pytest.approx(1_200)
    assert model.mean_ns(20) == pytest.approx(4_200)


def test_beyond_the_sizes_of_the_warm_up() -> None:
    model = ServiceModel({2: 1_000, 4: 1_400})
    assert model.mean_ns(1) == 1_000
    assert model.mean_ns(6) == pytest.approx(1_800)
    assert ServiceModel({4: 900}).mean_ns(1) == ServiceModel({4: 900}).mean_ns(64) == 900


def test_beyond_them_a_disturbance_of_the_last_one_is_no_slope() -> None:
    """Seen of MiniLM on a busy machine: between 504 and 512 tokens the times say 8 ms a token, and it was 0.4."""
    model = ServiceModel({units: units * MS // 2 for units in (8, 64, 128, 256, 480, 504)} | {512: 320 * MS})
    for units in (600, 2048):
        assert model.mean_ns(units) == pytest.approx(units * MS / 2, rel=0.7)
    assert model.deviation_ns(2048) <= 2 * 0.05 * model.mean_ns(2048)


def test_a_larger_batch_never_takes_less() -> None:
    model = ServiceModel({1: 900, 8: 500, 16: 1_000})
    assert [model.mean_ns(size) for size in (1, 4, 8, 16)] == [900, 900, 900, 1_000]


def test_without_warm_up_nothing_is_known_until_a_batch_is_back() -> None:
    model = ServiceModel({})
    assert not model.known
    assert model.mean_ns(8) == model.quantile_ns(8) == model.alpha_ns == model.beta_ns == 0
    model.observe(8, 5_000)
    assert model.known
    assert model.mean_ns(2) == 5_000
    model.observe(16, 9_000)
    assert model.mean_ns(16) == 9_000
    assert model.mean_ns(12) == pytest.approx(7_000)


def test_a_model_without_warm_up_learns_a_few_sizes() -> None:
    model = ServiceModel({})
    for size in range(1, 3 * MAX_LEARNT):
        model.observe(size, 1_000 * size)
    assert len(model.to_state()["sizes"]) == MAX_LEARNT
    assert model.mean_ns(3 * MAX_LEARNT) == pytest.approx(3_000 * MAX_LEARNT, rel=0.1)


def test_a_batch_of_no_time_teaches_nothing() -> None:
    model = ServiceModel({1: 0})
    model.observe(1, 5)
    assert model.mean_ns(1) == 0


def test_fixed_cost_and_cost_of_a_row() -> None:
    model = ServiceModel({1: 1_100, 32: 4_200})
    assert model.beta_ns == pytest.approx(100)
    assert model.alpha_ns == pytest.approx(1_000)
    larger = ServiceModel({1: 1_100, 32: 4_200}, max_units=64)
    assert larger.max_units == 64
    assert larger.beta_ns == pytest.approx(100)
    assert ServiceModel({8: 400, 16: 4_000}).alpha_ns == 0


def test_the_deviation_is_measured_or_supposed() -> None:
    model = ServiceModel({1: 1_000, 3: 2_000}, {1: 100})
    assert model.deviation_ns(1) == 100
    assert model.deviation_ns(3) == 100  # 5 %
    assert model.quantile_ns(1) == 1_000 + FIRST_K * 100
    assert ServiceModel({1: 1_000}, {1: 0}).deviation_ns(1) == 5


# ---------------------------------------------------------------- learning


def test_the_sizes_beside_a_batch_learn_most() -> None:
    model = ServiceModel({1: 1_000, 2: 1_000, 4: 1_000, 8: 1_000}, {1: 100, 2: 100, 4: 100, 8: 100})
    model.observe(3, 1_100)
    assert model.mean_ns(2) == model.mean_ns(4) == pytest.approx(1_000 * (1 + GAIN / 10))
    assert model.mean_ns(8) == pytest.approx(1_000 * (1 + GAIN / 10))  # never below the smaller ones
    assert model.mean_ns(1) == pytest.approx(1_000 * (1 + FAR_GAIN / 10))


def test_a_size_that_was_warmed_up_is_its_own_neighbour() -> None:
    model = ServiceModel({1: 1_000, 2: 2_000, 4: 4_000})
    model.observe(2, 2_100)
    assert model.mean_ns(2) == pytest.approx(2_000 * (1 + GAIN / 20))
    assert model.mean_ns(4) == pytest.approx(4_000 * (1 + FAR_GAIN / 20))


def test_a_drift_is_followed_by_all_sizes() -> None:
    model = ServiceModel({1: 1 * MS, 32: 4 * MS})
    for _ in range(600):
        model.observe(32, 8 * MS)
    assert model.mean_ns(32) == pytest.approx(8 * MS, rel=0.01)
    assert model.mean_ns(1) == pytest.approx(2 * MS, rel=0.02)


def test_a_stall_is_not_a_slow_model() -> None:
    model = ServiceModel({1: 1_000}, {1: 50})
    model.observe(1, 1_000_000)
    assert model.mean_ns(1) == pytest.approx(1_000 + GAIN * CLIP * FIRST_K * 50)


@pytest.mark.parametrize("sigma", [0.02, 0.07, 0.3])
def test_one_batch_in_a_hundred_exceeds_the_quantile(sigma: float) -> None:
    rng = random.Random(1)
    model = ServiceModel({1: MS, 32: 4 * MS})
    exceeded = 0
    for number in range(20_000):
        took_ns = int(4 * MS * rng.lognormvariate(0, sigma))
        exceeded += number >= 1_000 and took_ns > model.quantile_ns(32)
        model.observe(32, took_ns)
    assert exceeded / 19_000 == pytest.approx(MISSES, abs=0.006)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 10**9)), max_size=60))
def test_whatever_happens_the_predictions_make_sense(batches: list[tuple[int, int]]) -> None:
    model = ServiceModel({1: 1_000, 4: 1_500, 32: 9_000})
    for units, run_ns in batches:
        model.observe(units, run_ns)
    means = [model.mean_ns(units) for units in range(1, 50)]
    assert means == sorted(means)
    assert all(mean > 0 and model.deviation_ns(size) > 0 for size, mean in enumerate(means, 1))
    assert LEAST_K <= model.k <= MOST_K


# ---------------------------------------------------------------- large enough


def line(alpha_ms: float, beta_ms: float) -> ServiceModel:
    means = {size: int((alpha_ms + beta_ms * size) * MS) for size in (1, 2, 4, 8, 16, 32)}
    return ServiceModel(means, {size: mean * 56 // 1000 for size, mean in means.items()}, max_units=32)


def test_the_largest_batch_where_two_of_them_fit() -> None:
    assert line(4, 0.1).full_batch(32, 50 * MS) == 32


def test_a_smaller_one_that_costs_little_where_they_do_not() -> None:
    """1 + 1 b: 16 rows in 17 ms are 97 % of 32 rows in 33 ms."""
    model = line(1, 1)
    assert model.full_batch(32, 50 * MS) == 16
    assert 16 / model.mean_ns(16) >= 0.97 * 32 / model.mean_ns(32)


def test_the_largest_one_where_any_smaller_costs_too_much() -> None:
    assert line(20, 0.5).full_batch(32, 50 * MS) == 32
    assert line(1, 1).full_batch(32, 20 * MS) == 32


# ---------------------------------------------------------------- persistence


def test_what_was_learnt_survives() -> None:
    model = ServiceModel({1: 1 * MS, 8: 2 * MS}, {1: 50_000}, max_units=16)
    for number in range(50):
        model.observe(1 + number % 8, 1_500_000 + 10_000 * number)
    again = ServiceModel.from_state(json.loads(json.dumps(model.to_state())))
    assert again.to_state() == model.to_state()
    assert (again.max_units, again.batches) == (16, 50)
    assert again.quantile_ns(5) == pytest.approx(model.quantile_ns(5), rel=1e-5)


def test_nothing_learnt_survives_too() -> None:
    again = ServiceModel.from_state(ServiceModel({}).to_state())
    assert (again.known, again.max_units) == (False, 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "expected version 1, got 2"),
        ({"version": None}, "got None"),
        ({"sizes": [1]}, "argument"),
        ({"sizes": None}, "NoneType"),
        ({"sizes": [8, 1]}, "ascending"),
        ({"mean_ns": [-1, 2]}, "at least 0"),
        ({"shape_ns": []}, "one time for each"),
        ({"k": "much"}, "float"),
        ({"k": 10**400}, "OverflowError"),
        ({"k": float("nan")}, "finite"),
        ({"k": float("inf")}, "finite"),
        ({"mean_ns": [10**400] * 2}, "OverflowError"),
        ({"mean_ns": [float("inf")] * 2}, "OverflowError"),
        ({"mean_ns": [float("nan")] * 2}, "NaN"),
        ({"mean_ns": [1, 10**18]}, "an hour"),
        ({"shape_ns": [1, 1e300]}, "an hour"),
        ({"shape_ns": [1, float("nan")]}, "finite"),
        ({"deviation_ns": [1e300] * 2}, "an hour"),
        ({"deviation_ns": [10_001, 1]}, "10 times the mean"),
        ({"sizes": [-5, 8]}, "sizes of at most"),
        ({"sizes": [1, 10**400]}, "sizes of at most"),
        ({"max_units": 10**400}, "sizes of at most"),
        ({"batches": -1}, "batches"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(change: dict[str, object], why: str) -> None:
    state = ServiceModel({1: 1_000, 8: 2_000}).to_state() | change
    with pytest.raises(ValueError, match=why):
        ServiceModel.from_state(state)


def test_a_state_with_a_part_missing_is_refused() -> None:
    state = ServiceModel({1: 1_000}).to_state()
    del state["k"]
    with pytest.raises(ValueError, match="'k'"):
        ServiceModel.from_state(state)


# ---------------------------------------------------------------- the way there and back


def test_the_way_belongs_to_every_size() -> None:
    model = ServiceModel({1: 2_000_000, 32: 8_000_000}, max_units=32)
    before = model.beta_ns, model.alpha_ns
    for _ in range(400):
        model.observe(1, 2_000_000, 1_000_000)
    assert model.way_ns == pytest.approx(1e6, rel=0.01)
    assert model.mean_ns(1) == pytest.approx(3e6, rel=0.01)
    assert model.mean_ns(32) == pytest.approx(9e6, rel=0.01)
    assert model.beta_ns == pytest.approx(before[0], rel=0.01)
    assert model.alpha_ns == pytest.approx(before[1] + 1e6, rel=0.01)


def test_a_stall_is_forgotten_by_batches_of_any_size() -> None:
    """What it made large batches seem to cost must not keep them from being made for long."""
    model = ServiceModel({1: 2_000_000, 32: 8_000_000}, max_units=32)
    for _ in range(50):
        model.observe(32, 8_000_000, 20_000_000)
    assert model.quantile_ns(32) > 30_000_000
    for _ in range(200):
        model.observe(1, 2_000_000, 0)
    assert model.quantile_ns(32) < 10_000_000


def test_no_way_is_no_deviation() -> None:
    model = ServiceModel({1: 2_000_000}, {1: 50_000})
    deviation_ns = model.deviation_ns(1)
    model.observe(1, 2_000_000)
    assert model.way_ns == 0
    assert model.deviation_ns(1) <= deviation_ns


# ---------------------------------------------------------------- probes


def test_a_few_probes_put_a_wrong_belief_right() -> None:
    model = ServiceModel({1: 40 * MS, 8: 80 * MS}, {1: 8 * MS, 8: 8 * MS})
    model.way_ns = 4.0 * MS
    for _ in range(5):
        assert model.probe(1, 2 * MS)
    assert model.mean_ns(1) < 13 * MS
    assert model.mean_ns(8) == pytest.approx(2 * model.mean_ns(1), rel=0.1)
    assert model.deviation_ns(1) < 3 * MS
    assert model.batches == 5


@pytest.mark.parametrize("run_ns", [38 * MS, 40 * MS, 80 * MS])
def test_a_probe_that_says_nothing_new_is_a_batch_like_others(run_ns: int) -> None:
    probed, observed = (ServiceModel({1: 40 * MS}, {1: 3 * MS}) for _ in range(2))
    assert not probed.probe(1, run_ns)
    observed.observe(1, run_ns)
    assert probed.to_state() == observed.to_state()
