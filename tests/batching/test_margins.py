"""How careful to be, learnt from what came too late."""

from __future__ import annotations

import pytest

from trioserve.batching import Margins
from trioserve.batching._margins import (
    FIRST_KG,
    FIRST_Z,
    LATE,
    LEAST_KG,
    LEAST_Z,
    MISSED,
    MOST_KG,
    MOST_STEP,
    MOST_Z,
)


def test_broken_promises_make_careful() -> None:
    margins = Margins()
    margins.promised(near=10, missed=1)
    assert margins.z == pytest.approx(FIRST_Z + 0.1 - MISSED)
    for _ in range(100):
        margins.promised(1, 1)
    assert margins.z == MOST_Z


def test_one_stall_is_no_lesson_for_long() -> None:
    """A whole batch late counts like a tenth of one: of three of them little is left after two hundred in time."""
    margins = Margins()
    for _ in range(3):
        margins.promised(32, 32)
    assert margins.z == pytest.approx(FIRST_Z + 3 * (MOST_STEP - MISSED))
    for _ in range(200):
        margins.promised(32, 0)
    assert margins.z < FIRST_Z


def test_kept_promises_make_bold() -> None:
    margins = Margins()
    for _ in range(2_000):
        margins.promised(5, 0)
    assert margins.z == LEAST_Z


def test_where_nothing_was_at_stake_nothing_is_learnt() -> None:
    margins = Margins()
    margins.promised(0, 0)
    assert (margins.z, margins.kg) == (FIRST_Z, FIRST_KG)


def test_late_rows_make_batches_smaller() -> None:
    margins = Margins()
    margins.cut(rows=4, late=1)
    assert margins.kg == pytest.approx(FIRST_KG + (0.25 - LATE) / 2)
    for _ in range(10):
        margins.cut(1, 1)
    assert margins.kg == MOST_KG
    for _ in range(1_000):
        margins.cut(32, 0)
    assert margins.kg == LEAST_KG
