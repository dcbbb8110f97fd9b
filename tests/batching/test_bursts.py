"""The rest of a burst, learnt from those before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import Bursts
from trioserve.batching._bursts import MOST, QUIET_NS

US = 1_000
MS = 1_000_000
ALPHA = 4.0 * MS


def after(count: int, gap_ns: int = 100 * US, times: int = 30) -> tuple[Bursts, int]:
    """What is learnt of so many bursts, and when the next one begins."""
    bursts = Bursts()
    for number in range(times):
        start_ns = (number + 1) * 20 * MS
        bursts.observe([start_ns + place * gap_ns for place in range(count)])
    return bursts, (times + 1) * 20 * MS


def test_the_rest_of_a_burst_is_expected() -> None:
    bursts, start_ns = after(4)
    etas = bursts.etas(start_ns, 1, ALPHA, start_ns)
    assert len(etas) == 3
    for number, (eta_ns, likely) in enumerate(etas, 1):
        assert 0 <= eta_ns - start_ns - number * 100 * US < 20 * US
        assert likely > 0.9
    assert len(bursts.etas(start_ns, 3, ALPHA, start_ns + 200 * US)) == 1
    assert bursts.etas(start_ns, 4, ALPHA, start_ns + 300 * US) == []


def test_a_burst_goes_on_behind_those_that_were_served() -> None:
    bursts, start_ns = after(4)
    bursts.observe([start_ns])
    assert len(bursts.etas(start_ns + 100 * US, 1, ALPHA, start_ns + 100 * US)) == 2


def test_nothing_is_expected_of_what_has_not_been_seen() -> None:
    assert Bursts().etas(20 * MS, 1, ALPHA, 20 * MS) == []
    bursts, start_ns = after(1)
    assert bursts.etas(start_ns, 1, ALPHA, start_ns) == []
    few, start_ns = after(4, times=3)
    assert few.etas(start_ns, 1, ALPHA, start_ns) == []


def test_a_burst_that_is_overdue_is_over() -> None:
    bursts, start_ns = after(4)
    assert bursts.etas(start_ns, 1, ALPHA, start_ns + 900 * US) == []


def test_what_comes_at_any_time_is_not_waited_for() -> None:
    bursts = Bursts()
    for number in range(40):
        start_ns = (number + 1) * 20 * MS
        bursts.observe([start_ns, start_ns + (900 if number % 2 else 100) * US])
    assert len(bursts.etas(900 * MS, 1, ALPHA, 900 * MS)) == 1
    assert bursts.etas(900 * MS, 1, ALPHA / 2, 900 * MS) == []


def test_bursts_that_stop_are_forgotten() -> None:
    bursts, start_ns = after(4)
    bursts.observe([start_ns + number * 20 * MS for number in range(10)])
    assert bursts.etas(start_ns + 400 * MS, 1, ALPHA, start_ns + 400 * MS) == []


def test_a_long_burst_is_learnt_as_far_as_a_batch_goes() -> None:
    bursts, start_ns = after(MOST + 10, gap_ns=10 * US)
    assert len(bursts.etas(start_ns, 1, ALPHA, start_ns)) == MOST - 1
    assert bursts.etas(start_ns, MOST, ALPHA, start_ns) == []


@given(st.lists(st.lists(st.integers(0, 3 * QUIET_NS), min_size=1, max_size=40), max_size=10))
def test_whatever_comes_the_etas_are_possible(batches: list[list[int]]) -> None:
    bursts = Bursts()
    now_ns = 10 * MS
    for gaps in batches:
        readies_ns = [now_ns := now_ns + gap_ns for gap_ns in gaps]
        bursts.observe(readies_ns)
        etas = bursts.etas(now_ns, 1, ALPHA, now_ns)
        assert all(0 < likely <= 1 for _, likely in etas)
