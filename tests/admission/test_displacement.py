"""Whether a request that is admitted pushes another behind its deadline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.admission.situations import MS, NOW, S10, D, Line, behind, rule
from trioserve.admission import Rule, Situation


def test_nobody_is_pushed_behind_its_deadline() -> None:
    """Nine are ahead: the first one behind would be first of the next batch."""
    finish_ms = (2 * S10 + 4.1 * MS + 3.5 * D * (1 + 1 + 1 + 4 / 64) ** 0.5) / MS
    soon = NOW + 30 * MS
    assert rule().admit(1, 1, soon, NOW, behind(finish_ms + 0.001, 90, ahead=9)).admitted == 1
    verdict = rule().admit(1, 1, soon, NOW, behind(finish_ms - 0.5, 90, ahead=9))
    assert verdict.admitted == 0
    assert verdict.excess_ns == pytest.approx(0.5 * MS, abs=2)


def test_those_who_stay_in_their_batch_are_not_pushed() -> None:
    assert rule().admit(1, 1, NOW + 30 * MS, NOW, behind(12, 12, ahead=7)).admitted == 1


def test_every_later_batch_is_looked_at() -> None:
    fine = [90.0] * 10
    assert rule().admit(1, 1, NOW + 30 * MS, NOW, behind(*fine, 20, ahead=9)).admitted == 0
    assert rule().admit(1, 1, NOW + 30 * MS, NOW, behind(*fine, 40, ahead=9)).admitted == 1


def test_a_run_pushes_by_its_length() -> None:
    assert rule().admit(3, 1, NOW + 30 * MS, NOW, behind(*[90] * 5, 14, *[90] * 9)).admitted == 3
    assert rule().admit(6, 1, NOW + 30 * MS, NOW, behind(*[90] * 5, 14, *[90] * 9)).admitted == 4


def test_who_is_lost_already_needs_no_protection() -> None:
    """More than two full batches late, whatever is done."""
    assert rule().admit(1, 1, NOW + 30 * MS, NOW, behind(1, ahead=9)).admitted == 1


def test_the_payload_of_the_new_one_does_not_delay_those_behind() -> None:
    late = behind(20, ahead=9, eta_ns=15 * MS)
    assert rule().admit(1, 1, NOW + 40 * MS, NOW, late).admitted == 1


class Naive(Rule):
    """Looks at every place, and computes everything each time."""

    def _displaced(self, deadlines_ns: Any, units: float, now_ns: int, situation: Situation) -> float:
        full, pushed, ahead = self.full_units, int(units + 0.5), int(situation.ahead)
        behind = deadlines_ns(0, 1)
        plain = situation._replace(eta_ns=0)
        for place in range(-(-(ahead + pushed) // full) * full, ahead + len(behind) + pushed, full):
            over_ns = self._finish(place, now_ns, plain) - behind[place - pushed - ahead]
            if 0 < over_ns <= 2 * self.full_ns:
                return over_ns
        return 0.0


@given(
    st.lists(st.integers(1, 400), max_size=40) | st.lists(st.integers(1, 400), min_size=60, max_size=150),
    st.integers(0, 30),
    st.integers(1, 40),
    st.integers(1, 4),
    st.tuples(st.booleans(), st.floats(0, 5e-6), st.floats(0, 0.5)),
)
@settings(deadline=None)
def test_what_is_passed_over_would_have_been_in_time(
    after_ms: list[int], ahead: int, count: int, executors: int, load: tuple[bool, float, float]
) -> None:
    """Whole stretches are compared at once; the answer, and what is near from then on, is that of one by one."""
    by_key, rate, rho = load
    waiting = sorted(after_ms) if by_key else after_ms
    free_ns = [NOW + S10 + 2 * MS * number for number in range(executors)]
    case = behind(*waiting, ahead=ahead, rate=rate, rho=rho, free_ns=free_ns, eta_ns=3 * MS)
    quick, naive = (
        kind(Line(), executors=executors, max_units=10, sla_ns=500 * MS, random=lambda: 0.5)
        for kind in (Rule, Naive)
    )
    far = NOW + 400 * MS
    assert quick.admit(count, 1, far, NOW, case) == naive.admit(count, 1, far, NOW, case)
    assert quick.near_ns == naive.near_ns


def test_what_was_computed_for_one_says_nothing_of_the_next() -> None:
    """The same place, behind an executor that is free later."""
    subject = rule()
    for free_ms in (5, 15, 5):
        case = behind(18, ahead=9, free_ns=[NOW + free_ms * MS])
        verdict = rule().admit(1, 1, NOW + 40 * MS, NOW, case)
        assert subject.admit(1, 1, NOW + 40 * MS, NOW, case) == verdict
        assert verdict.admitted == int(free_ms == 5)


@pytest.mark.parametrize("executors", [2, 3])
@pytest.mark.parametrize("batches", range(1, 9))
def test_the_executor_that_is_free_last_decides_about_a_stretch(executors: int, batches: int) -> None:
    """Its batches finish later than those that are started after them elsewhere."""
    free_ns = [NOW + S10] * (executors - 1) + [NOW + 12 * S10]
    for due_ms in range(70, 130, 5):
        case = behind(*[due_ms] * (10 * batches), ahead=9, free_ns=free_ns)
        quick, naive = (
            kind(Line(), executors=executors, max_units=10, sla_ns=500 * MS, random=lambda: 0.5)
            for kind in (Rule, Naive)
        )
        far = NOW + 400 * MS
        assert quick.admit(1, 1, far, NOW, case) == naive.admit(1, 1, far, NOW, case)
