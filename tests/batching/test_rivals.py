"""How other servers cut batches."""

from __future__ import annotations

import pytest

from trioserve.batching import (
    AdditiveIncrease,
    Cork,
    Dispatch,
    Greedy,
    JustInTime,
    Learner,
    PreferredSizes,
    QueueView,
    WaitForRows,
    WaitUntil,
)
from trioserve_protocol import CutReason

MS = 1_000_000
NOW = 10**9
FULL, NO_GAIN, SLACK, WINDOW = CutReason.FULL, CutReason.NO_GAIN, CutReason.SLACK, CutReason.WINDOW


def view(queued_rows: int, age_ns: int = 0) -> QueueView:
    return QueueView(queued_rows, 8, NOW - age_ns, NOW + 50 * MS, 0, 0, 0, 0, 4.0 * MS, 0.1 * MS)


@pytest.mark.parametrize("policy", [Greedy(), JustInTime()])
def test_greedy_takes_all_that_waits(policy: Greedy) -> None:
    assert policy.decide(view(3), NOW) == Dispatch(3, NO_GAIN)
    assert policy.decide(view(9), NOW) == Dispatch(8, FULL)


def test_a_number_of_rows_is_waited_for() -> None:
    policy = WaitForRows(2)
    assert policy.decide(view(2), NOW) == Dispatch(2, NO_GAIN)
    assert isinstance(policy.decide(view(1), NOW), WaitUntil)


def test_preferred_sizes_go_at_once_and_others_when_the_delay_is_over() -> None:
    policy = PreferredSizes(MS, (4, 2))
    assert policy.decide(view(5), NOW) == Dispatch(4, FULL)
    assert policy.decide(view(3), NOW) == Dispatch(2, FULL)
    assert policy.decide(view(1), NOW) == WaitUntil(NOW + MS)
    assert policy.decide(view(1, MS), NOW) == Dispatch(1, WINDOW)
    assert isinstance(PreferredSizes(MS).decide(view(7), NOW), WaitUntil)
    assert PreferredSizes(MS).decide(view(9), NOW) == Dispatch(8, FULL)


def test_cork_waits_as_long_as_usual() -> None:
    """At first it supposes 10 ms of waiting and 1 ms a row: three rows cost 3 * (1 + 1) ms, five 10 ms."""
    policy = Cork(50 * MS)
    assert policy.decide(view(3), NOW) == WaitUntil(NOW + MS)
    assert policy.decide(view(5), NOW) == Dispatch(5, WINDOW)
    assert policy.decide(view(20), NOW) == Dispatch(8, WINDOW)


def test_cork_gives_up_heads_that_would_be_late() -> None:
    policy = Cork(50 * MS)
    assert policy.decide(view(4, 44 * MS), NOW) == Dispatch(0, SLACK, drop=1)
    assert policy.decide(view(4, 43 * MS), NOW) == Dispatch(4, WINDOW)


def test_cork_fits_a_line_to_its_batches() -> None:
    policy: Learner = Cork(50 * MS)
    for rows in (1, 2, 4, 8, 8):
        policy.learn(rows, (20 + 3 * rows) * MS)
    assert isinstance(policy, Cork)
    assert policy.decide(view(8, 7 * MS), NOW) == Dispatch(0, SLACK, drop=1)
    assert policy.decide(view(8, 5 * MS), NOW) == Dispatch(8, WINDOW)
    same = Cork(50 * MS)
    for _ in range(5):
        same.learn(4, 8 * MS)
    assert same.decide(view(4, 41 * MS), NOW) == Dispatch(4, WINDOW)
    assert same.decide(view(4, 43 * MS), NOW) == Dispatch(0, SLACK, drop=1)


def test_the_largest_batch_grows_by_steps_and_shrinks_by_a_tenth() -> None:
    policy = AdditiveIncrease(10 * MS)
    assert policy.decide(view(5), NOW) == Dispatch(1, NO_GAIN)
    for rows in (1, 3, 5):
        policy.learn(rows, 5 * MS)
    assert policy.decide(view(9), NOW) == Dispatch(7, NO_GAIN)
    policy.learn(3, 5 * MS)  # not a full one
    assert policy.decide(view(9), NOW) == Dispatch(7, NO_GAIN)
    policy.learn(7, 11 * MS)
    assert policy.decide(view(9), NOW) == Dispatch(6, NO_GAIN)
    for _ in range(50):
        policy.learn(1, 11 * MS)
    assert policy.decide(view(9), NOW) == Dispatch(1, NO_GAIN)
