"""When a batch is cut: pure functions of a view and a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import Dispatch, FixedWindow, Policy, QueueView, WaitUntil, WorkConserving
from trioserve.batching._policy import TIMER_LATENESS_NS
from trioserve_protocol import CutReason

US = 1_000
MS = 1_000_000
NOW = 10**9
NEVER = 2**63 - 1


def view(**changes: Any) -> QueueView:
    """Two ready rows of at most eight, on an idle executor, with nothing announced."""
    plain = QueueView(
        queued_rows=2,
        max_rows=8,
        oldest_ready_ns=NOW,
        head_deadline_ns=NOW + 50 * MS,
        announced_rows=0,
        announced_eta_ns=0,
        last_completion_ns=NOW - 5 * MS,
        free_ns=0,
        fixed_ns=1.0 * MS,
        per_row_ns=100.0 * US,
    )
    return plain._replace(**changes)


def test_a_ready_row_is_not_kept_waiting() -> None:
    assert WorkConserving(2 * MS).decide(view(), NOW) == Dispatch(2, CutReason.NO_GAIN)


def test_a_full_batch_is_cut_also_behind_a_busy_executor() -> None:
    decision = WorkConserving(2 * MS).decide(view(queued_rows=9, free_ns=NOW + MS), NOW)
    assert decision == Dispatch(8, CutReason.FULL)


def test_a_batch_stays_open_while_the_executor_is_busy() -> None:
    policy = WorkConserving(2 * MS, lead_ns=20 * US)
    busy = view(free_ns=NOW + MS)
    assert policy.decide(busy, NOW) == WaitUntil(NOW + MS - 20 * US)
    assert policy.decide(busy, NOW + MS - 20 * US) == Dispatch(2, CutReason.NO_GAIN)


def test_an_announced_row_is_waited_for() -> None:
    soon = view(announced_rows=1, announced_eta_ns=NOW + 300 * US)
    assert WorkConserving(2 * MS).decide(soon, NOW) == WaitUntil(NOW + 300 * US + TIMER_LATENESS_NS)


def test_a_row_that_should_be_here_is_waited_for_a_moment_more() -> None:
    overdue = view(announced_rows=1, announced_eta_ns=NOW - 100 * US)
    assert WorkConserving(2 * MS).decide(overdue, NOW) == WaitUntil(NOW + TIMER_LATENESS_NS)


def test_no_window_is_no_waiting() -> None:
    soon = view(announced_rows=1, announced_eta_ns=NOW + 300 * US)
    assert WorkConserving(0).decide(soon, NOW) == Dispatch(2, CutReason.NO_GAIN)


def test_a_late_arrival_is_not_worth_the_wait() -> None:
    """One batch less saves 1 ms and delays two rows that would have cost 0.2 ms more."""
    policy = WorkConserving(2 * MS)
    late = view(announced_rows=1, announced_eta_ns=NOW + 800 * US)
    assert policy.decide(late, NOW) == Dispatch(2, CutReason.NO_GAIN)
    assert isinstance(policy.decide(late._replace(announced_eta_ns=NOW + 799 * US), NOW), WaitUntil)


def test_the_window_counts_from_when_row_and_executor_were_ready() -> None:
    policy = WorkConserving(2 * MS)
    waiting = view(announced_rows=1, announced_eta_ns=NOW + 2 * MS, oldest_ready_ns=NOW - 5 * MS)
    assert policy.decide(waiting._replace(last_completion_ns=NOW - 2 * MS), NOW) == Dispatch(
        2, CutReason.WINDOW
    )
    fresh = waiting._replace(last_completion_ns=NOW - MS, announced_eta_ns=NOW + 2 * US)
    assert isinstance(policy.decide(fresh, NOW), WaitUntil)


def test_the_window_ends_the_wait() -> None:
    policy = WorkConserving(100 * US)
    soon = view(announced_rows=1, announced_eta_ns=NOW + 300 * US)
    assert policy.decide(soon, NOW) == WaitUntil(NOW + 100 * US)


def test_a_pressing_deadline_ends_the_wait() -> None:
    policy = WorkConserving(2 * MS)
    service_ns = int(view().service_ns(3))
    pressing = view(announced_rows=1, announced_eta_ns=NOW + 300 * US)
    at_ns = NOW + 200 * US
    deadline_ns = at_ns + service_ns + TIMER_LATENESS_NS
    assert policy.decide(pressing._replace(head_deadline_ns=deadline_ns), NOW) == WaitUntil(at_ns)
    assert policy.decide(pressing._replace(head_deadline_ns=deadline_ns), at_ns) == Dispatch(
        2, CutReason.SLACK
    )


def test_a_fixed_window_waits_it_out() -> None:
    policy = FixedWindow(2 * MS)
    assert policy.decide(view(), NOW) == WaitUntil(NOW + 2 * MS)
    assert policy.decide(view(), NOW + 2 * MS) == Dispatch(2, CutReason.WINDOW)
    assert policy.decide(view(queued_rows=8), NOW) == Dispatch(8, CutReason.FULL)


INSTANTS = st.one_of(st.integers(0, 2 * NOW), st.just(NEVER))


@given(
    st.sampled_from([WorkConserving(0), WorkConserving(2 * MS, 20 * US), FixedWindow(MS)]),
    st.builds(
        view,
        queued_rows=st.integers(1, 12),
        oldest_ready_ns=st.integers(0, NOW),
        head_deadline_ns=INSTANTS,
        announced_rows=st.integers(0, 2),
        announced_eta_ns=INSTANTS,
        last_completion_ns=st.integers(0, NOW),
        free_ns=st.integers(0, 2 * NOW),
        fixed_ns=st.floats(0, 10 * MS),
        per_row_ns=st.floats(0, MS),
    ),
)
def test_a_decision_is_a_possible_batch_or_a_time_to_come(policy: Policy, queue: QueueView) -> None:
    """A wait that is over when it begins would be a busy loop."""
    decision = policy.decide(queue, NOW)
    if isinstance(decision, Dispatch):
        assert 1 <= decision.rows <= min(queue.queued_rows, queue.max_rows)
    else:
        assert decision.at_ns > NOW


@given(st.integers(1, 12), st.integers(0, 10 * MS))
def test_no_row_waits_for_nothing_longer_than_a_window(rows: int, age_ns: int) -> None:
    """Whatever is announced: on an idle executor the wait ends a window after the row was ready."""
    policy = WorkConserving(2 * MS)
    queue = view(
        queued_rows=rows,
        announced_rows=1,
        announced_eta_ns=NOW,
        oldest_ready_ns=NOW - age_ns,
        fixed_ns=100.0 * MS,
        head_deadline_ns=NEVER,
    )
    decision = policy.decide(queue, NOW)
    if age_ns >= 2 * MS:
        assert isinstance(decision, Dispatch)
    elif isinstance(decision, WaitUntil):
        assert decision.at_ns <= NOW - age_ns + 2 * MS


def test_a_policy_is_handed_numbers_it_can_explain() -> None:
    assert view().service_ns(3) == pytest.approx(1.3 * MS)
