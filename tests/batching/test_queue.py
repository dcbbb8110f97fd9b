"""Rows of one size in service order, as ranges, and what is taken of them for a batch."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trioserve.batching import RowQueue, _sums
from trioserve.batching._queue import MAX_RANGES
from trioserve.batching._sums import GROUP

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


def arrivals(*ranges: tuple[int, int]) -> RowQueue:
    """Rows of one deadline, in order of arrival."""
    queue = RowQueue(BLOCK, [0] * 4 * MAX_RANGES)
    for first, count in ranges:
        queue.push(first, count, 0)
    return queue


def rows_until(*deadlines_ns: int, offsets_ns: Sequence[int] = ()) -> RowQueue:
    """One row a slot with these deadlines, in order of arrival."""
    queue = RowQueue(BLOCK, deadlines_ns)
    for slot, deadline_ns in enumerate(deadlines_ns):
        queue.push(slot, 1, deadline_ns, offsets_ns[slot] if offsets_ns else 0)
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


# ---------------------------------------------------------------- by key


def test_who_has_less_time_overtakes() -> None:
    queue = rows_until(50, 60, 20, 70)
    assert queue.head == 2
    assert queue.peek(8, ONES) == [(2, 1), (0, 2), (3, 1)]
    assert queue.deadlines(3) == [20, 50, 60]


def test_a_row_in_the_middle_divides_a_range() -> None:
    queue = rows_until(50, 60, 55)
    assert queue.peek(8, ONES) == [(0, 1), (2, 1), (1, 1)]
    assert queue.take(2, ONES) == [(0, 1), (2, 1)]
    assert queue.take(1, ONES) == [(1, 1)]


def test_what_a_batch_takes_lies_in_the_order_of_the_slots() -> None:
    queue = rows_until(50, 20, 60, 30)
    assert queue.take(4, ONES) == [(0, 4)]


def test_deadlines_within_a_grain_count_as_one() -> None:
    queue = RowQueue(BLOCK, [16, 19, 17, 23], grain_ns=8)
    for slot, deadline_ns in enumerate([16, 19, 17, 23]):
        queue.push(slot, 1, deadline_ns)
    assert queue.peek(8, ONES) == [(0, 4)]
    assert queue.head_deadline_ns(8) == 16
    assert queue.ahead(16) == 4
    assert queue.ahead(15) == 0


def test_rows_of_one_key_are_served_in_order_of_arrival() -> None:
    queue = rows_until(50, 90, 50, 50)
    assert queue.peek(8, ONES) == [(0, 1), (2, 2), (1, 1)]


def test_an_important_row_overtakes_until_the_others_have_aged() -> None:
    queue = rows_until(50, 50, 160, offsets_ns=(100, 0, 0))
    assert queue.peek(8, ONES) == [(1, 1), (0, 1), (2, 1)]
    assert queue.head_deadline_ns(8) == 50


def test_the_earliest_deadline_is_not_always_the_head_s() -> None:
    queue = rows_until(120, 50, offsets_ns=(0, 100))
    assert queue.head == 0
    assert queue.head_deadline_ns(1) == 120
    assert queue.head_deadline_ns(2) == 50


def test_the_oldest_is_not_always_the_head() -> None:
    queue = rows_until(50, 20, 60)
    assert queue.oldest_ready_ns(1, [7, 8, 9]) == 8
    assert queue.oldest_ready_ns(2, [7, 8, 9]) == 7


def test_what_comes_after_an_empty_queue_is_not_behind_what_was_there() -> None:
    queue = rows_until(90)
    assert queue.take(1, ONES) == [(0, 1)]
    queue.push(0, 1, 10)
    assert queue.ahead(10) == 1
    assert queue.remove(0, 1)
    assert queue.ahead(10) == 0


def test_full_is_what_has_no_room_for_more() -> None:
    queue = rows_until(1, 2, 3)
    assert queue.outlook(2) == (2, True)
    assert queue.outlook(3) == (3, True)
    assert queue.outlook(4) == (3, False)


# ---------------------------------------------------------------- against a list

Request = tuple[int, int, int, int]
"""Key, number of arrival, first slot, rows."""

OFFSETS = (0, 0, 0, 30)
pushes = st.tuples(st.just("push"), st.integers(1, 4), st.integers(0, 60), st.sampled_from(OFFSETS))
step = st.one_of(
    pushes,
    pushes,
    st.tuples(st.just("take"), st.integers(1, BLOCK), st.just(0), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 20), st.just(0), st.just(0)),
)
steps = st.one_of(st.lists(step, max_size=40), st.lists(step, min_size=25, max_size=60))
"""Short ones, and some that make the queue so long that it is summed up in groups."""


@given(steps, st.booleans(), st.sampled_from([1, 8]), st.sampled_from([1, 2, GROUP]))
@settings(deadline=None)
def test_a_row_queue_is_a_sorted_list_of_requests(
    program: list[tuple[str, int, int, int]],
    in_order: bool,  # noqa: FBT001 - drawn
    grain_ns: int,
    group: int,
) -> None:
    with patch.object(_sums, "GROUP", group):
        play(program, grain_ns, in_order=in_order)


@pytest.mark.parametrize("seed", range(40))
def test_a_long_queue_is_summed_up_in_groups(seed: int) -> None:
    """Programs longer than those that are drawn by themselves: most of what can be forgotten shows only in these."""
    rng, program = random.Random(seed), list[tuple[str, int, int, int]]()
    for _ in range(60):
        kind = rng.choice(("push", "push", "push", "take", "remove"))
        offset_ns = rng.choice(OFFSETS) if kind == "push" else 0
        program.append((kind, rng.randint(1, 4), rng.randint(0, 60), offset_ns))
    with patch.object(_sums, "GROUP", 1 + seed % 2):
        play(program, 1 + 7 * (seed % 3 == 0), in_order=False)


def play(program: list[tuple[str, int, int, int]], grain_ns: int, *, in_order: bool) -> None:
    deadline_ns = array("q", bytes(8 * 1024))
    queue, model = RowQueue(BLOCK, deadline_ns, grain_ns), list[Request]()
    counts = np.ones(1024, np.uint16)
    fill = 0
    for number, (step, value, after_ns, offset_ns) in enumerate(program):
        if step == "push":
            if fill % BLOCK + value > BLOCK:
                fill += BLOCK - fill % BLOCK
            counts[fill] = value
            counts[fill + 1 : fill + value] = 0
            deadline = 10 * number if in_order else 3 * number + after_ns
            deadline_ns[fill : fill + value] = array("q", [deadline] * value)
            queue.push(fill, value, deadline, offset_ns)
            model.append((deadline // grain_ns * grain_ns + offset_ns, number, fill, value))
            model.sort()
            fill += value
        elif step == "take" and model:
            expected = [model.pop(0)]
            while model and sum(request[3] for request in [*expected, model[0]]) <= value:
                expected.append(model.pop(0))
            taken = queue.take(value, counts)
            assert slots_of(taken) == sorted(slots_of([request[2:] for request in expected]))
            assert_joined(taken)
        elif step == "remove" and model:
            _, _, first, rows = model.pop(value % len(model))
            assert queue.remove(first, rows)
        assert queue.rows == sum(request[3] for request in model)
        if model:
            check_order(queue, model, counts, deadline_ns)


def check_order(
    queue: RowQueue,
    model: list[Request],
    counts: NDArray[np.uint16],
    deadline_ns: array[int],
) -> None:
    """What is asked of a queue, against what a sorted list says."""
    assert queue.head == model[0][2]
    assert queue.head_key_ns == model[0][0]
    slots = slots_of([request[2:] for request in model])
    assert slots_of(queue.peek(1024, counts)) == slots
    assert list(queue.deadlines(1024)) == [deadline_ns[slot] for slot in slots]
    for rows in (1, 5, 1024):
        earliest_ns = min(deadline_ns[slot] for slot in slots[:rows])
        assert queue.head_deadline_ns(rows) == earliest_ns
        assert earliest_ns - 8 < queue.floor_deadline_ns(rows) <= earliest_ns
    assert queue.head_deadline_ns(1024) == min(deadline_ns[slot] for slot in slots)
    for key_ns in (0, model[len(model) // 2][0], model[-1][0], 10**6):
        ahead = sum(request[3] for request in model if request[0] <= key_ns)
        assert queue.ahead(key_ns) == ahead
        for position, step in ((0, 1), (ahead, 1), (ahead + 1, 3), (5, 7)):
            assert queue.every(position, step) == [deadline_ns[slot] for slot in slots[position::step]]


def assert_joined(ranges: list[tuple[int, int]]) -> None:
    for (first, count), (following, _) in pairwise(ranges):
        assert first + count <= following
        assert first + count < following or not following % BLOCK


def slots_of(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [slot for first, count in ranges for slot in range(first, first + count)]


def test_looking_takes_nothing() -> None:
    queue = arrivals((0, 2))
    assert queue.peek(8, ONES) == queue.peek(8, ONES)
    assert queue.rows == 2
