"""Sums over a list that changes anywhere, against sums that are taken anew."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from trioserve.batching import _sums
from trioserve.batching._sums import GROUP, Sums

Entries = list[list[int]]
"""Entries that can change: each is a list of its rows."""


def rows_of(entry: list[int]) -> int:
    return entry[0]


def check(sums: Sums[list[int]], entries: Entries) -> None:
    for index in range(len(entries) + 1):
        assert sums.before(index) == sum(map(rows_of, entries[:index]))
    flat = [(id(entry), number) for entry in entries for number in range(entry[0])]
    for position, step in ((0, 1), (1, 3), (len(flat) // 2, 2), (len(flat), 1)):
        found, numbers = sums.every(position, step)
        assert [(id(entry), number) for entry, number in zip(found, numbers, strict=True)] == flat[
            position::step
        ]


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_the_list(seed: int) -> None:
    """Nobody has to be told of what is entered at the end, or of how the last entry changes."""
    rng, entries = random.Random(seed), Entries()
    most_rows = 1 + seed % 3
    sums = Sums(entries, rows_of)
    with patch.object(_sums, "GROUP", 1 + seed % 2):
        for _ in range(60):
            step = rng.choice(("enter", "enter", "grow", "replace"))
            if step == "enter":
                entries.append([rng.randint(1, most_rows)])
            elif step == "grow" and entries:
                entries[-1][0] += most_rows - 1
            elif entries:
                index = rng.randrange(len(entries))
                old = min(rng.randint(0, 3), len(entries) - index)
                new = [[rng.randint(1, most_rows)] for _ in range(rng.randint(0, 2))]
                entries[index : index + old] = new
                sums.spliced(index, old, len(new))
            if rng.random() < 0.5:
                check(sums, entries)
        check(sums, entries)


def test_the_last_entry_may_change_when_all_behind_the_groups_are_gone() -> None:
    entries = [[1] for _ in range(4 * GROUP)]
    sums = Sums(entries, rows_of)
    sums.before(0)
    summed = sum(sums.lengths)
    assert 0 < summed < len(entries)
    gone = len(entries) - summed
    del entries[summed:]
    sums.spliced(summed, gone, 0)
    entries[-1][0] = 5
    assert sums.before(len(entries)) == summed + 4


def test_nothing_is_kept_before_somebody_asks_and_of_a_short_list() -> None:
    entries = [[1] for _ in range(2 * GROUP)]
    sums = Sums(entries, rows_of)
    assert sums.before(GROUP) == GROUP
    assert not sums.lengths
    entries.append([1])
    assert not sums.lengths
    assert sums.before(0) == 0
    assert sum(sums.lengths) == 2 * GROUP
