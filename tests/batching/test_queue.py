"""Rows in service order, as ranges, and what is taken of them for a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trioserve.batching import ArrivalQueue, LengthQueue
from trioserve.batching._queue import MAX_RANGES

BLOCK = 8
SLOTS = 64


def row_counts(**requests: int) -> NDArray[np.uint16]:
    """The rows column; `s3=2` is a request of two rows from slot 3."""
    counts = np.ones(SLOTS, np.uint16)
    for name, rows in requests.items():
        first = int(name[1:])
        counts[first] = rows
        counts[first + 1 : first + rows] = 0
    return counts


ONES = row_counts()


def arrivals(*ranges: tuple[int, int]) -> ArrivalQueue:
    queue = ArrivalQueue(BLOCK)
    for first, count in ranges:
        queue.push(first, count)
    return queue


# ---------------------------------------------------------------- in order of arrival


def test_adjacent_rows_are_one_range() -> None:
    queue = arrivals((0, 1), (1, 1), (2, 3))
    assert queue.rows == 5
    assert queue.peek(8, ONES) == [(0, 5)]


def test_ranges_are_not_joined_across_blocks() -> None:
    assert arrivals((6, 2), (8, 1)).peek(8, ONES) == [(6, 2), (8, 1)]


def test_the_head_has_waited_longest() -> None:
    queue = arrivals((5, 1), (0, 2))
    assert queue.head == 5
    assert queue.take(1, ONES) == [(5, 1)]
    assert queue.head == 0


def test_a_batch_takes_part_of_a_range() -> None:
    queue = arrivals((0, 5), (8, 4))
    assert queue.take(7, ONES) == [(0, 5), (8, 2)]
    assert queue.take(7, ONES) == [(10, 2)]
    assert queue.rows == 0


def test_a_request_is_not_divided() -> None:
    counts = row_counts(s1=3)
    queue = arrivals((0, 1), (1, 3))
    assert queue.take(3, counts) == [(0, 1)]
    assert queue.take(3, counts) == [(1, 3)]


def test_a_batch_ends_before_a_request_that_does_not_fit() -> None:
    assert arrivals((0, 2), (8, 3)).peek(4, row_counts(s8=3)) == [(0, 2)]


def test_a_first_request_is_taken_whatever_the_limit() -> None:
    queue = arrivals((0, 3), (3, 1))
    assert queue.take(2, row_counts(s0=3)) == [(0, 3)]
    assert queue.rows == 1


def test_a_batch_has_as_many_ranges_as_a_descriptor_takes() -> None:
    counts = np.ones(4 * MAX_RANGES, np.uint16)
    queue = arrivals(*((2 * number, 1) for number in range(MAX_RANGES + 1)))
    assert len(queue.take(5_000, counts)) == MAX_RANGES
    assert queue.rows == 1


@pytest.mark.parametrize(
    ("first", "count", "left"),
    [
        (0, 1, [(1, 4), (8, 2)]),
        (4, 1, [(0, 4), (8, 2)]),
        (1, 2, [(0, 1), (3, 2), (8, 2)]),
        (0, 5, [(8, 2)]),
        (8, 2, [(0, 5)]),
    ],
)
def test_an_answered_request_is_taken_out(first: int, count: int, left: list[tuple[int, int]]) -> None:
    queue = arrivals((0, 5), (8, 2))
    assert queue.remove(first, count)
    assert queue.peek(16, ONES) == left
    assert queue.rows == sum(rows for _, rows in left)


def test_what_does_not_wait_is_not_removed() -> None:
    queue = arrivals((0, 5))
    assert not queue.remove(5, 1)
    assert queue.rows == 5


Step = tuple[str, int]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(1, 4)),
            st.tuples(st.just("take"), st.integers(1, BLOCK)),
            st.tuples(st.just("remove"), st.integers(0, 9)),
        ),
        max_size=40,
    )
)
@settings(deadline=None)
def test_an_arrival_queue_is_a_list_of_requests(program: list[Step]) -> None:
    queue, model = ArrivalQueue(BLOCK), list[tuple[int, int]]()
    counts = np.ones(1024, np.uint16)
    fill = 0
    for step, value in program:
        if step == "push":
            if fill % BLOCK + value > BLOCK:
                fill += BLOCK - fill % BLOCK
            counts[fill] = value
            counts[fill + 1 : fill + value] = 0
            queue.push(fill, value)
            model.append((fill, value))
            fill += value
        elif step == "take" and model:
            expected = [model.pop(0)]
            while model and sum(rows for _, rows in [*expected, model[0]]) <= value:
                expected.append(model.pop(0))
            assert slots_of(queue.take(value, counts)) == slots_of(expected)
        elif step == "remove" and model:
            first, rows = model.pop(value % len(model))
            assert queue.remove(first, rows)
        assert queue.rows == sum(rows for _, rows in model)
        if model:
            assert queue.head == model[0][0]
            assert slots_of(queue.peek(1024, counts)) == slots_of(model)


def slots_of(ranges: list[tuple[int, int]]) -> list[int]:
    return [slot for first, count in ranges for slot in range(first, first + count)]


# ---------------------------------------------------------------- in length buckets


def lengths_of(*tokens: int) -> NDArray[np.uint32]:
    lengths = np.zeros(SLOTS, np.uint32)
    lengths[: len(tokens)] = tokens
    return lengths


def texts(
    *tokens: int, max_tokens: int = 0, padded: bool = True, buckets: tuple[int, ...] = (16, 64)
) -> LengthQueue:
    """A queue of one-row requests with so many tokens each."""
    queue = LengthQueue(buckets, lengths_of(*tokens), block_rows=BLOCK, max_tokens=max_tokens, padded=padded)
    for slot in range(len(tokens)):
        queue.push(slot, 1)
    return queue


def test_a_batch_comes_from_the_bucket_whose_head_has_waited_longest() -> None:
    queue = texts(60, 5, 16, 17)
    assert queue.head == 0
    assert queue.take(8, ONES) == [(0, 1), (3, 1)]
    assert queue.head == 1
    assert queue.take(8, ONES) == [(1, 2)]
    assert queue.rows == 0


def test_a_text_longer_than_all_buckets_is_in_the_last() -> None:
    assert texts(20, 500).take(8, ONES) == [(0, 2)]


def test_texts_are_joined_within_a_block() -> None:
    assert texts(*[5] * (BLOCK + 2)).take(64, ONES) == [(0, BLOCK), (BLOCK, 2)]


def test_rows_are_limited() -> None:
    queue = texts(5, 5, 5)
    assert queue.outlook(2) == (2, True)
    assert queue.outlook(3) == (3, True)
    assert queue.outlook(4) == (3, False)
    assert queue.take(2, ONES) == [(0, 2)]


@pytest.mark.parametrize(("padded", "rows"), [(True, 2), (False, 3)])
def test_tokens_are_limited(*, padded: bool, rows: int) -> None:
    """Padded, 10 + 4 + 4 tokens cost 30; packed, 18."""
    queue = texts(10, 4, 4, max_tokens=20, padded=padded)
    assert queue.outlook(8) == (rows, padded)
    assert queue.take(8, ONES) == [(0, rows)]


@pytest.mark.parametrize("limit", [1, 8])
def test_a_single_request_is_always_allowed(limit: int) -> None:
    queue = LengthQueue((16, 64), lengths_of(9, 12, 3), block_rows=BLOCK, max_tokens=10, padded=True)
    queue.push(0, 3)
    assert queue.take(limit, ONES) == [(0, 3)]


def test_a_request_is_in_the_bucket_of_its_longest_row() -> None:
    queue = LengthQueue((16, 64), lengths_of(5, 40, 7), block_rows=BLOCK, max_tokens=0, padded=True)
    queue.push(2, 1)
    queue.push(0, 2)
    assert queue.take(8, ONES) == [(2, 1)]
    assert queue.take(8, ONES) == [(0, 2)]


def test_an_answered_text_is_taken_out_once() -> None:
    queue = texts(5, 6)
    assert queue.remove(0, 1)
    assert not queue.remove(0, 1)
    assert queue.rows == 1
    assert queue.peek(8, ONES) == [(1, 1)]


@given(
    tokens=st.lists(st.integers(1, 99), min_size=1, max_size=40),
    limit=st.integers(1, 9),
    budget=st.sampled_from([0, 64, 200]),
    padded=st.booleans(),
)
def test_all_texts_leave_within_the_budget_and_in_order(
    tokens: list[int], limit: int, budget: int, *, padded: bool
) -> None:
    queue = texts(*tokens, max_tokens=budget, padded=padded, buckets=(8, 32, 128))
    left: list[int] = []
    while queue.rows:
        oldest = min(set(range(len(tokens))) - set(left))
        rows, _ = queue.outlook(limit)
        taken = slots_of(queue.take(limit, ONES))
        assert taken[0] == oldest
        assert len(taken) == rows <= limit
        lengths = [tokens[slot] for slot in taken]
        cost = max(lengths) * len(lengths) if padded else sum(lengths)
        assert not budget or len(taken) == 1 or cost <= budget
        assert len({int(np.searchsorted([8, 32], length)) for length in lengths}) == 1
        left += taken
    assert sorted(left) == list(range(len(tokens)))


MakeQueue = Callable[[], ArrivalQueue | LengthQueue]


@pytest.mark.parametrize("make", [lambda: arrivals((0, 2)), lambda: texts(5, 5)])
def test_looking_takes_nothing(make: MakeQueue) -> None:
    queue = make()
    assert queue.peek(8, ONES) == queue.peek(8, ONES)
    assert queue.rows == 2
