"""Rates with a short memory."""

from __future__ import annotations

import pytest

from trioserve.batching import DeadlineBands

MS = 1_000_000
SOON = 5 * MS


def test_a_steady_stream_has_its_rate() -> None:
    bands = DeadlineBands(10 * MS)
    for step in range(1, 101):
        bands.count(5, SOON)
        assert bands.rates(SOON, step * MS)[0] >= 0
    assert bands.rates(SOON, 100 * MS)[0] == pytest.approx(5 / MS, rel=1e-3)


def test_what_was_is_forgotten() -> None:
    bands = DeadlineBands(10 * MS)
    bands.count(100, SOON)
    before, _ = bands.rates(SOON, 10 * MS)
    assert bands.rates(SOON, 20 * MS)[0] == pytest.approx(before / 2.718, rel=1e-3)
    assert bands.rates(SOON, 1_000 * MS)[0] == pytest.approx(0, abs=1e-12)


def test_asking_twice_at_one_moment_changes_nothing() -> None:
    bands = DeadlineBands(10 * MS)
    bands.count(3, SOON)
    first = bands.rates(SOON, MS)
    bands.count(3, SOON)
    assert bands.rates(SOON, MS) == first
    assert sum(bands.pending.values()) == 3


def test_requests_in_a_hurry_are_told_apart() -> None:
    bands = DeadlineBands(10 * MS)
    for step in range(1, 101):
        bands.count(2, 5 * MS)
        bands.count(1, 50 * MS)
        bands.rates(50 * MS, step * MS)
    total, shorter = bands.rates(50 * MS, 100 * MS)
    assert total == pytest.approx(3 / MS, rel=1e-3)
    assert shorter == pytest.approx(2 / MS, rel=1e-3)
    assert bands.rates(5 * MS, 100 * MS)[1] == 0


def test_one_band_has_none_before_it() -> None:
    bands = DeadlineBands(10 * MS)
    bands.count(8, 50 * MS)
    assert bands.rates(50 * MS, MS)[1] == 0
    assert bands.rates(10_000 * MS, MS)[1] == 0


def test_a_deadline_that_has_passed_is_the_shortest() -> None:
    bands = DeadlineBands(10 * MS)
    bands.count(1, -5)
    bands.count(1, 5)
    total, shorter = bands.rates(5, MS)
    assert shorter == total / 2
    assert bands.rates(-1, MS)[1] == 0
