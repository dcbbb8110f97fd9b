"""What is predicted from a warm-up, and how it follows what is seen."""

from __future__ import annotations

import pytest

from trioserve.batching import ServiceModel
from trioserve.batching._service import CLIP, GAIN


def test_a_line_through_the_smallest_and_the_largest_batch() -> None:
    model = ServiceModel({1: 1_100, 8: 1_500, 32: 4_200})
    assert model.per_unit_ns == 100
    assert model.fixed_ns == 1_000
    assert model.predict_ns(16) == 2_600


def test_one_size_is_a_constant() -> None:
    assert ServiceModel({4: 900}).predict_ns(1) == 900


def test_a_line_never_predicts_less_than_nothing() -> None:
    assert ServiceModel({1: 900, 8: 500}).predict_ns(8) == 900
    steep = ServiceModel({2: 100, 3: 300})
    assert steep.fixed_ns == 0
    assert steep.predict_ns(1) == 200


def test_nothing_is_known_before_the_first_batch() -> None:
    model = ServiceModel({})
    assert model.predict_ns(8) == 0
    model.observe(8, 5_000)
    assert model.predict_ns(2) == 5_000


def test_the_scale_follows_what_is_seen() -> None:
    model = ServiceModel({1: 1_000, 2: 1_000})
    model.observe(1, 2_000)
    assert model.scale == pytest.approx(1 + GAIN)
    for _ in range(500):
        model.observe(2, 2_000)
    assert model.predict_ns(1) == pytest.approx(2_000, rel=1e-3)


def test_a_stall_counts_for_a_bounded_multiple() -> None:
    model = ServiceModel({1: 1_000, 2: 1_000})
    model.observe(1, 10**9)
    assert model.scale == pytest.approx(1 + GAIN * (CLIP - 1))
