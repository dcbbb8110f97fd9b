"""Whether a request that arrives now will be answered in time."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.admission.situations import MS, NOW, S10, US, D, behind, rule, situation
from trioserve.admission import Situation, Verdict
from trioserve.admission._rule import MAX_RETRY_NS


def needed_ns(case: Situation, count: int = 1, **changes: Any) -> int:
    """The nearest deadline with which the last of a run is admitted, from now."""
    low, high = 0, 1_000 * MS
    while low < high:
        middle = (low + high) // 2
        if rule(**changes).admit(count, 1, NOW + middle, NOW, case).admitted == count:
            high = middle
        else:
            low = middle + 1
    return low


def test_the_next_batch_starts_when_the_executor_is_free() -> None:
    margin = 3.5 * D * (1 + 1 + 1 / 64) ** 0.5
    assert needed_ns(situation()) == pytest.approx(S10 + 4.1 * MS + margin, abs=2)
    assert needed_ns(situation(ahead=9)) == pytest.approx(S10 + S10 + margin, abs=2)


def test_each_full_batch_ahead_costs_its_time() -> None:
    margin = 3.5 * D * (2 + 1 + 1 + 9 / 64) ** 0.5
    assert needed_ns(situation(ahead=20)) == pytest.approx(3 * S10 + 4.1 * MS + margin, abs=2)


def test_an_idle_server_is_trusted_more() -> None:
    idle = situation(idle=True, free_ns=[0], reserved=0)
    assert needed_ns(idle) == pytest.approx(4.1 * MS + D * (1 + 1 / 64) ** 0.5, abs=2)
    waiting = idle._replace(waiting=3, ahead=3)
    assert needed_ns(waiting) == pytest.approx(4.4 * MS + 3.5 * D * (1 + 1 / 64) ** 0.5, abs=2)


def test_a_batch_that_is_overdue_is_not_expected_this_instant() -> None:
    overdue = situation(free_ns=[NOW - MS])
    assert needed_ns(overdue) == needed_ns(situation(free_ns=[NOW + D]))


def test_a_payload_that_is_still_on_its_way_is_waited_for() -> None:
    assert needed_ns(situation(eta_ns=9 * MS)) == needed_ns(situation(free_ns=[NOW + 9 * MS]))


def test_what_will_have_come_by_then_is_in_the_batch_too() -> None:
    """One a millisecond for 5 ms makes five rows more."""
    assert needed_ns(situation(rate=1 / MS)) - needed_ns(situation()) == pytest.approx(0.5 * MS, abs=2)
    assert needed_ns(situation(rate=100 / MS)) == needed_ns(situation(ahead=9))


def test_shorter_deadlines_take_their_part_of_the_capacity() -> None:
    half = situation(ahead=20, rho=0.5)
    assert needed_ns(half) - needed_ns(half._replace(rho=0.0)) == pytest.approx(2 * S10, abs=2)


def test_better_ones_that_will_have_come_go_first() -> None:
    """Ten more ahead are one batch more."""
    assert needed_ns(situation(overtaken=10.0)) == needed_ns(situation(ahead=10))


def test_rho_is_at_most_a_half() -> None:
    assert rule().rho_of(0.5 / MS) == pytest.approx(0.25)
    assert rule().rho_of(100 / MS) == 0.5


def test_executors_share_the_batches_ahead() -> None:
    pair = situation(free_ns=[NOW + MS, NOW + 3 * MS])
    margin = 3.5 * D * (1 + 1 + 1 / 64) ** 0.5
    assert needed_ns(pair, executors=2) == pytest.approx(5.1 * MS + margin, abs=2)
    assert needed_ns(pair._replace(ahead=10), executors=2) == pytest.approx(7.1 * MS + margin, abs=2)
    later = 3.5 * D * (1 + 1 + 1 + 4 / 64) ** 0.5
    assert needed_ns(pair._replace(ahead=20), executors=2) == pytest.approx(S10 + 5.1 * MS + later, abs=2)


SHARE = 0.2
"""Of the SLA, left over."""


def test_a_tenant_over_its_share_must_have_time_to_spare() -> None:
    greedy = situation(left_share=SHARE)
    assert needed_ns(greedy) - needed_ns(situation()) == pytest.approx(SHARE * 50 * MS, abs=2)
    short = needed_ns(greedy, sla_ns=10 * MS) - needed_ns(situation(), sla_ns=10 * MS)
    assert short == pytest.approx(S10 + 3 * D, abs=2)


def test_an_idle_server_is_there_for_all() -> None:
    """Nobody could use the room that one over its share would leave."""
    idle = situation(idle=True, free_ns=[0], reserved=0)
    assert needed_ns(idle._replace(left_share=SHARE)) == needed_ns(idle)
    waiting = idle._replace(waiting=3, ahead=3)
    assert needed_ns(waiting._replace(left_share=SHARE)) > needed_ns(waiting)
    assert needed_ns(idle._replace(idle=False, left_share=SHARE)) > needed_ns(idle._replace(idle=False))


def test_it_is_near_where_little_is_left_or_nothing() -> None:
    """The margin of the only one is 1.42 ms."""
    need_ns = needed_ns(situation())
    margin_ns = 3.5 * D * (1 + 1 + 1 / 64) ** 0.5
    for after_ns, is_near in ((-1_000, True), (0, True), (margin_ns - 10, True), (margin_ns + 10, False)):
        assert rule().admit(1, 1, NOW + int(need_ns + after_ns), NOW, situation()).is_near == is_near
    verdict = rule().admit(100, 1, NOW + int(need_ns + 5 * margin_ns), NOW, situation())
    assert 0 < verdict.admitted < 100
    assert verdict.is_near


# ---------------------------------------------------------------- the semaphore of rows


def test_no_more_is_reserved_than_fits_into_the_deadline() -> None:
    """1.25 times what can be served in 50 ms: 12.5 batches."""
    far = NOW + 50 * MS
    assert rule().cap_units == pytest.approx(125)
    assert rule().admit(5, 1, far, NOW, situation(reserved=120)) == Verdict(5, 0.0)
    assert rule().admit(9, 1, far, NOW, situation(reserved=120)) == Verdict(5, S10, True)
    assert rule().admit(1, 6, far, NOW, situation(reserved=120)) == Verdict(0, S10, True)
    assert rule(sla_ns=MS).cap_units == 20


def test_who_brings_more_time_may_wait_behind_more() -> None:
    """750 texts with a minute each, of a model whose requests usually have 50 ms, are not too many."""
    far = NOW + 60_000 * MS
    assert rule().admit(750, 1, far, NOW, situation(reserved=120)) == Verdict(750, 0.0)
    assert rule().admit(750, 1, NOW + 100 * MS, NOW, situation(reserved=240)).admitted < 20


# ---------------------------------------------------------------- runs


@given(st.integers(1, 60), st.integers(0, 60), st.integers(5, 60), st.floats(0, 2e-6))
def test_a_run_is_admitted_as_its_requests_would_be(
    count: int, ahead: int, after_ms: int, rate: float
) -> None:
    case = situation(ahead=ahead, waiting=ahead, rate=rate)
    deadline_ns = NOW + after_ms * MS
    admitted = 0
    for position in range(count):
        one = case._replace(ahead=ahead + position, reserved=10 + position, waiting=ahead + position)
        if not rule().admit(1, 1, deadline_ns, NOW, one).admitted:
            break
        admitted += 1
    verdict = rule().admit(count, 1, deadline_ns, NOW, case)
    assert verdict.admitted == admitted
    assert (verdict.excess_ns > 0) == (admitted < count)


# ---------------------------------------------------------------- other models


def test_the_last_batch_is_filled_by_who_waits() -> None:
    assert rule().run_ns(0, 30) == 0
    assert rule().run_ns(1, 1) == 4.1 * MS
    assert rule().run_ns(1, 3) == 4.3 * MS
    assert rule().run_ns(11, 30) == 2 * S10
    assert rule().run_ns(11, 12) == S10 + 4.2 * MS
    assert rule(executors=2).run_ns(11, 30) == S10


def test_what_others_have_to_spare_is_what_their_most_urgent_batch_has() -> None:
    first_ns, second_ns = needed_ns(situation(ahead=9)), needed_ns(situation(ahead=10))
    spare = rule().spare_ns(NOW, behind(*[90] * 4, (first_ns + 7 * MS) / MS, *[90] * 9, ahead=5))
    assert spare > 50 * MS  # not the first of its batch
    for deadlines_ms in ([90] * 5 + [second_ns / MS + 7], [first_ns / MS + 7] + [90] * 20):
        assert rule().spare_ns(NOW, behind(*deadlines_ms, ahead=5)) == pytest.approx(7 * MS, abs=3)
    assert rule().spare_ns(NOW, situation()) == inf
    assert rule().spare_ns(NOW, behind(-30, ahead=5)) == inf  # lost already


@pytest.mark.parametrize(
    ("ahead", "waiting", "spare_ms", "admitted"),
    [(0, 0, 4.45, 4), (1, 1, 0.45, 4), (0, 3, 4.45, 1), (0, 3, 4.0, 0)],
)
def test_others_are_put_off_no_more_than_they_can_spare(
    ahead: int, waiting: int, spare_ms: float, admitted: int
) -> None:
    """4.4 ms for 4 rows; a row more in a batch that is before them costs 0.1 ms, and others that wait may fill it."""
    case = situation(ahead=ahead, waiting=waiting, spare_ns=spare_ms * MS)
    verdict = rule().admit(20, 1, NOW + 900 * MS, NOW, case)
    assert verdict.admitted == admitted
    assert verdict.excess_ns > 0


# ---------------------------------------------------------------- far from saturation


@given(
    st.integers(1, 20),
    st.integers(0, 10),
    st.floats(0, 1e-4),
    st.floats(0, 0.5),
    st.integers(0, 300),
    st.sampled_from([0, NOW + S10]),
)
def test_what_one_comparison_admits_the_full_rule_admits(
    reserved: int, running: int, rate: float, rho: float, spare_us: int, free_ns: int
) -> None:
    """The fast path promises nothing that the rule would not."""
    subject = rule()
    deadline_ns = NOW + int(subject.calm_ns) + spare_us * US
    if not subject.is_calm(reserved, deadline_ns, NOW):
        return
    waiting = max(0, reserved - 1 - running)
    case = situation(
        ahead=waiting,
        waiting=waiting,
        reserved=reserved - 1,
        rate=rate,
        rho=rho,
        idle=not free_ns,
        free_ns=[free_ns],
    )
    assert subject.admit(1, 1, deadline_ns + 1, NOW, case).admitted == 1


def test_near_saturation_it_is_not_calm() -> None:
    subject = rule()
    far = NOW + 1_000 * MS
    assert subject.is_calm(20, far, NOW)
    assert not subject.is_calm(21, far, NOW)
    assert not subject.is_calm(1, NOW + S10, NOW)


# ---------------------------------------------------------------- coming again


def test_each_refusal_comes_again_later() -> None:
    """3 of 10 that can be served are promised to those who come again: 2 a millisecond, so 1.67 ms each."""
    subject = rule()
    after = [subject.retry_after_us(6 * MS, NOW) for _ in range(3)]
    assert after == pytest.approx([7_666, 9_333, 11_000], abs=1)
    assert subject.retry_after_us(0, NOW + 100 * MS) == pytest.approx(1_666, abs=1)


@given(st.integers(1, 700), st.floats(0, 2e9), st.floats(0, 3e9))
def test_many_refusals_are_told_what_each_would_be(count: int, excess_ns: float, promised_ns: float) -> None:
    one, many = rule(), rule()
    for subject in (one, many):
        subject.retry_after_us(promised_ns, NOW)
    singly = [one.retry_after_us(excess_ns, NOW + MS) for _ in range(count)]
    at_once = many.retries_after_us(excess_ns, NOW + MS, np.full(count, 0.5))
    assert at_once.tolist() == pytest.approx(singly, abs=1.01)  # which are cut off to whole ones
    assert many.retry_after_us(0, NOW + MS) == pytest.approx(one.retry_after_us(0, NOW + MS), abs=1.01)


def test_many_refusals_are_scattered() -> None:
    plain = rule().retries_after_us(MS, NOW, np.full(3, 0.5))
    scattered = rule().retries_after_us(MS, NOW, np.array([0.0, 0.5, 1.0]))
    assert (scattered / plain).tolist() == pytest.approx([0.75, 1.0, 1.25])
    assert rule().retries_after_us(MS, NOW, np.full(2, 0.5), 3.0)[0] == pytest.approx(1_000 + 5_000)


def test_the_moment_to_come_again_is_at_most_a_second_away_and_scattered() -> None:
    subject = rule(random=lambda: 0.0)
    assert subject.retry_after_us(5_000 * MS, NOW) == 0.75 * MAX_RETRY_NS / 1_000
    subject = rule(random=lambda: 1.0)
    assert subject.retry_after_us(5_000 * MS, NOW) == 1.25 * MAX_RETRY_NS / 1_000
