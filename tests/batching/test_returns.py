"""Clients that come back: learnt one by one, or as columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import Returns
from trioserve.batching._returns import GRACE_NS, LEAST_ALPHA_NS, MAX_AWAY, PATIENCE

US = 1_000
MS = 1_000_000
START = 10**9


def returning(sessions: int = 1, times: int = 20, think_ns: int = 200 * US) -> tuple[Returns, int]:
    """Clients that have come back so often, and when they have all been answered again."""
    returns = Returns(4)
    returns.tune(4.0 * MS)
    now_ns = START
    for _ in range(times):
        for session in range(sessions):
            returns.replied(session, now_ns)
        now_ns += think_ns
        for session in range(sessions):
            returns.arrived(session, now_ns)
        now_ns += 5 * MS
    for session in range(sessions):
        returns.replied(session, now_ns)
    return returns, now_ns


def test_a_client_that_always_comes_back_is_expected() -> None:
    returns, now_ns = returning()
    [(eta_ns, likely)] = returns.etas(now_ns)
    assert 200 * US <= eta_ns - now_ns < 250 * US
    assert likely > 0.9


def test_a_client_that_is_back_is_not_expected() -> None:
    returns, now_ns = returning(2)
    returns.arrived(0, now_ns + 190 * US)
    assert len(returns.etas(now_ns + 190 * US)) == 1


def test_a_new_client_is_not_expected() -> None:
    returns, now_ns = returning(times=3)
    assert returns.etas(now_ns) == []


def test_a_client_that_is_overdue_is_given_up() -> None:
    returns, now_ns = returning()
    [(eta_ns, _)] = returns.etas(now_ns)
    deviation_ns = eta_ns - now_ns - 200 * US
    until_ns = now_ns + 200 * US + PATIENCE * deviation_ns + GRACE_NS
    assert len(returns.etas(int(until_ns) - 10)) == 1
    assert returns.etas(int(until_ns) + 10) == []


def test_a_client_that_often_stays_away_is_not_expected() -> None:
    returns, now_ns = returning()
    for number in range(20):
        now_ns += 500 * MS if number % 2 else 200 * US
        returns.arrived(0, now_ns)
        returns.replied(0, now_ns)
    assert returns.etas(now_ns) == []


def test_a_client_whose_time_scatters_is_not_expected() -> None:
    returns, now_ns = returning()
    returns.tune(0.3 * MS)
    for number in range(40):
        now_ns += 400 * US if number % 2 else 100 * US
        returns.arrived(0, now_ns)
        returns.replied(0, now_ns)
    assert returns.etas(now_ns) == []


def test_nothing_is_predicted_where_nothing_can_be_gained() -> None:
    returns, now_ns = returning()
    returns.tune(LEAST_ALPHA_NS - 1)
    assert returns.etas(now_ns) == []
    returns.replied(0, now_ns)
    returns.arrived(0, now_ns)
    returns.arrived_many(np.array([0], np.uint32), now_ns)
    returns.replied_many(np.array([0], np.uint32), now_ns)
    assert returns.etas(now_ns) == []


def test_an_index_that_was_another_clients_starts_anew() -> None:
    returns, now_ns = returning()
    returns.closed(0)
    returns.closed(1_000)
    assert returns.etas(now_ns) == []
    returns.replied(0, now_ns)
    assert returns.etas(now_ns) == []


def test_there_is_room_for_any_session() -> None:
    returns = Returns(1)
    returns.arrived(77, START)
    returns.replied(77, START)
    returns.replied_many(np.array([500, 3], np.uint32), START)
    returns.replied_many(np.array([], np.uint32), START)
    returns.arrived(500, START + MS)
    assert returns.etas(START) == []


def test_columns_are_expected_like_single_clients() -> None:
    returns, now_ns = returning()
    single = returns.etas(now_ns)
    returns.arrived_many(np.array([0], np.uint32), now_ns + 200 * US)
    assert returns.etas(now_ns) == []
    returns.replied_many(np.array([0], np.uint32), now_ns)
    [(eta_ns, likely)] = returns.etas(now_ns)
    assert single[0][0] - 20 * US < eta_ns <= single[0][0]
    assert likely > single[0][1]


def test_only_so_many_are_kept_in_mind() -> None:
    returns, now_ns = returning(MAX_AWAY + 5)
    assert len(returns.etas(now_ns)) == MAX_AWAY


EVENTS = st.lists(
    st.tuples(st.booleans(), st.sets(st.integers(0, 5), min_size=1), st.integers(1, 300 * US)), max_size=80
)


@given(EVENTS)
def test_columns_learn_what_single_calls_learn(events: list[tuple[bool, set[int], int]]) -> None:
    single, many = Returns(2), Returns(2)
    now_ns = START
    for returns in (single, many):
        returns.tune(4.0 * MS)
    for arrives, sessions, passed_ns in events:
        now_ns += passed_ns
        column = np.array(sorted(sessions), np.uint32)
        for session in sorted(sessions):
            (single.arrived if arrives else single.replied)(session, now_ns)
        (many.arrived_many if arrives else many.replied_many)(column, now_ns)
        one, other = single.etas(now_ns), many.etas(now_ns)
        assert [eta_ns for eta_ns, _ in other] == pytest.approx([eta_ns for eta_ns, _ in one])
        assert [likely for _, likely in other] == pytest.approx([likely for _, likely in one])
