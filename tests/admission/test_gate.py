"""Permits are taken whole or in part as asked, and never more than there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.admission import Gate, Permits


def gate(rows: int = 4, nbytes: int = 100) -> Gate:
    return Gate(Permits(rows), Permits(nbytes))


def taken(gate: Gate) -> tuple[int, int]:
    return gate.rows.taken, gate.nbytes.taken


def test_there_is_at_least_one_permit() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Permits(0)


def test_permits_are_given_as_long_as_there_are_some() -> None:
    permits = Permits(3)
    assert [permits.take_up_to(2), permits.take_up_to(2), permits.take_up_to(2)] == [2, 1, 0]
    permits.release(3)
    assert permits.taken == 0
    assert permits.high_water == 3


def test_returning_what_was_not_taken_is_a_bug() -> None:
    permits = Permits(3)
    with pytest.raises(AssertionError, match="more permits came back"):
        permits.release(1)


def test_a_request_gets_all_its_permits_or_none() -> None:
    both = gate()
    assert both.admit(3, 60)
    assert not both.admit(2, 0)
    assert not both.admit(1, 41)
    assert taken(both) == (3, 60)
    assert both.admit(1, 40)
    both.release(4, 100)
    assert taken(both) == (0, 0)
    assert (both.rows.high_water, both.nbytes.high_water) == (4, 100)


@pytest.mark.parametrize(
    ("count", "nbytes_each", "admitted"), [(3, 10, 3), (9, 10, 4), (4, 40, 2), (4, 101, 0), (9, 0, 4)]
)
def test_a_run_is_admitted_from_the_front(count: int, nbytes_each: int, admitted: int) -> None:
    both = gate()
    assert both.admit_run(count, nbytes_each) == admitted
    assert taken(both) == (admitted, admitted * nbytes_each)


@given(st.integers(0, 6), st.integers(0, 40), st.integers(0, 4), st.integers(0, 100))
def test_a_run_gets_what_its_requests_would_get_one_by_one(
    count: int, nbytes_each: int, rows_before: int, nbytes_before: int
) -> None:
    together, single = gate(), gate()
    for one in (together, single):
        assert one.admit(rows_before, nbytes_before)
    admitted = together.admit_run(count, nbytes_each)
    assert [single.admit(1, nbytes_each) for _ in range(count)] == [row < admitted for row in range(count)]
    assert taken(together) == taken(single)
    assert together.rows.high_water == single.rows.high_water
