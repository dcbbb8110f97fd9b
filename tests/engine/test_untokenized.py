"""Texts that wait for the tokenizer, against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trioserve.engine._untokenized import Untokenized

PUSHES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30)


def pushed(pushes: list[tuple[int, int]]) -> tuple[Untokenized, list[tuple[int, int, int]]]:
    """A queue, and what is in it as (key, first slot, rows); the slots are in the order of arrival."""
    queue, plain = Untokenized(), []
    for number, (key_ns, rows) in enumerate(pushes):
        queue.push(10 * number, rows, key_ns)
        plain.append((key_ns, 10 * number, rows))
    return queue, sorted(plain)


@given(PUSHES, st.integers(1, 9), st.sets(st.integers(0, 29)))
def test_the_most_urgent_leave_first_in_order_of_arrival(
    pushes: list[tuple[int, int]], most_rows: int, answered: set[int]
) -> None:
    queue, plain = pushed(pushes)
    for number in answered:
        assert queue.remove(10 * number) == (number < len(pushes))
        assert not queue.remove(10 * number)
    plain = [entry for entry in plain if entry[1] // 10 not in answered]
    assert all(first in queue for _, first, _ in plain)
    assert not any(10 * number in queue for number in answered)
    assert list(queue) == [first for _, first, _ in plain]
    while plain:
        assert len(queue) == len(plain)
        assert queue.rows == sum(rows for _, _, rows in plain)
        assert queue.head_key_ns == plain[0][0]
        taken = queue.take(most_rows)
        assert taken == [(first, rows) for _, first, rows in plain[: len(taken)]]
        total = sum(rows for _, rows in taken)
        assert total <= most_rows or len(taken) == 1
        del plain[: len(taken)]
        assert not plain or total + plain[0][2] > most_rows
    assert not queue
    assert queue.rows == 0


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(-1, 6))
def test_rows_ahead_of_a_newcomer(keys_ns: list[int], key_ns: int) -> None:
    queue, _ = pushed([(other_ns, 2) for other_ns in keys_ns])
    assert queue.ahead(key_ns) == 2 * sum(other_ns <= key_ns for other_ns in keys_ns)


def test_rows_ahead_are_shared_out_among_requests_of_several_sizes() -> None:
    queue, _ = pushed([(1, 1), (2, 9)])
    assert [queue.ahead(key_ns) for key_ns in (0, 1, 2)] == [0, 5, 10]
