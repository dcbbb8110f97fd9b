"""Rows of different lengths in service order, and what is taken of them for a batch."""

from __future__ import annotations

import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trioserve.batching import LengthQueue, _sums
from trioserve.batching._sums import GROUP

BLOCK = 8
SLOTS = 64
ONES = np.ones(SLOTS, np.uint16)


def slots_of(ranges: list[tuple[int, int]]) -> list[int]:
    return [slot for first, count in ranges for slot in range(first, first + count)]


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
        queue.push(slot, 1, slot)
    return queue


def test_a_batch_comes_from_the_bucket_of_the_most_urgent() -> None:
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
    queue.push(0, 3, 0)
    assert queue.take(limit, ONES) == [(0, 3)]


def test_a_request_is_in_the_bucket_of_its_longest_row() -> None:
    queue = LengthQueue((16, 64), lengths_of(5, 40, 7), block_rows=BLOCK, max_tokens=0, padded=True)
    queue.push(2, 1, 0)
    queue.push(0, 2, 0)
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
        assert queue.head == oldest
        taken = slots_of(queue.take(limit, ONES))
        assert oldest in taken
        assert len(taken) == rows <= limit
        lengths = [tokens[slot] for slot in taken]
        cost = max(lengths) * len(lengths) if padded else sum(lengths)
        assert not budget or len(taken) == 1 or cost <= budget
        assert len({int(np.searchsorted([8, 32], length)) for length in lengths}) == 1
        left += taken
    assert sorted(left) == list(range(len(tokens)))


Request = tuple[int, int, int, int]
"""Key, number of arrival, first slot and rows."""

Step = tuple[str, int, int, int]
"""What, the tokens or how many or which, deadline, offset."""

pushes = st.tuples(st.just("push"), st.integers(1, 60), st.integers(0, 60), st.sampled_from((0, 30)))
step = st.one_of(
    pushes,
    pushes,
    st.tuples(st.just("take"), st.integers(1, 5), st.just(0), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 20), st.just(0), st.just(0)),
)
steps = st.one_of(st.lists(step, max_size=40), st.lists(step, min_size=25, max_size=60))


@given(steps, st.sampled_from([1, 2, GROUP]))
@settings(max_examples=40, deadline=None)
def test_a_length_queue_is_a_sorted_list_for_each_bucket(program: list[Step], group: int) -> None:
    with patch.object(_sums, "GROUP", group):
        play(program)


@pytest.mark.parametrize("seed", range(40))
def test_a_long_queue_is_summed_up_in_groups(seed: int) -> None:
    rng, program = random.Random(seed), list[Step]()
    for _ in range(60):
        kind = rng.choice(("push", "push", "push", "take", "remove"))
        program.append((kind, rng.randint(1, 5), rng.randint(0, 60), rng.choice((0, 30))))
        if kind == "push":
            program[-1] = (kind, rng.randint(1, 60), *program[-1][2:])
    with patch.object(_sums, "GROUP", 1 + seed % 2):
        play(program)


def play(program: list[Step]) -> None:
    """Requests of one to three rows, of which the last one is the longest."""
    slots = 3 * len(program)
    lengths = np.zeros(slots, np.uint32)
    queue = LengthQueue((16, 32, 64), lengths, block_rows=BLOCK, max_tokens=0, padded=True)
    model: list[list[Request]] = [[], [], []]
    deadlines_ns: dict[int, int] = {}
    for number, (step, value, deadline_ns, offset_ns) in enumerate(program):
        waiting = sorted(request for bucket in model for request in bucket)
        first = 3 * number
        if step == "push":
            rows = 1 + value % 3
            lengths[first : first + rows] = range(value - rows + 1, value + 1)
            deadlines_ns[first] = deadline_ns
            queue.push(first, rows, deadline_ns, offset_ns)
            bucket = model[0 if value <= 16 else 1 if value <= 32 else 2]
            bucket.append((deadline_ns + offset_ns, number, first, rows))
            bucket.sort()
        elif waiting and step == "take":
            bucket = next(bucket for bucket in model if waiting[0] in bucket)
            expected = [bucket.pop(0)]
            while bucket and sum(rows for *_, rows in [*expected, bucket[0]]) <= value:
                expected.append(bucket.pop(0))
            taken = queue.take(value, np.ones(slots, np.uint16))
            assert slots_of(taken) == sorted(slots_of([request[2:] for request in expected]))
        elif waiting:
            request = waiting[value % len(waiting)]
            next(bucket for bucket in model if request in bucket).remove(request)
            assert queue.remove(*request[2:])
            assert not queue.remove(*request[2:])
        check_order(queue, model, deadlines_ns)


def check_order(queue: LengthQueue, model: list[list[Request]], deadlines_ns: dict[int, int]) -> None:
    """What is asked of a queue, against what sorted lists say."""
    waiting = sorted(request for bucket in model for request in bucket)
    assert queue.rows == sum(rows for *_, rows in waiting)
    if not waiting:
        return
    assert queue.head == waiting[0][2]
    assert queue.head_key_ns == waiting[0][0]
    bucket = next(bucket for bucket in model if waiting[0] in bucket)
    in_bucket = [deadlines_ns[first] for _, _, first, rows in bucket for _ in range(rows)]
    assert queue.deadlines(3) == in_bucket[:3]
    assert queue.head_deadline_ns(3) == min(queue.deadlines(3))
    ready_ns = range(max(deadlines_ns) + 1)
    assert queue.oldest_ready_ns(3, ready_ns) == min(first for _, _, first, _ in bucket[:3])
    by_key = [deadlines_ns[first] for _, _, first, rows in waiting for _ in range(rows)]
    for key_ns in (0, waiting[len(waiting) // 2][0], 200):
        ahead = sum(rows for key, _, _, rows in waiting if key <= key_ns)
        assert queue.ahead(key_ns) == ahead
        for position, step in ((0, 1), (ahead, 1), (1, 3)):
            assert queue.every(position, step) == by_key[position::step]


def test_looking_takes_nothing() -> None:
    queue = texts(5, 5)
    assert queue.peek(8, ONES) == queue.peek(8, ONES)
    assert queue.rows == 2
