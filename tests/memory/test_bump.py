"""The region of texts: ranges never overlap, and every block comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.memory import FULL, BumpRegion


@pytest.mark.parametrize(("nbytes", "block_nbytes"), [(8, 0), (4, 8), (20, 8)])
def test_the_region_is_a_multiple_of_blocks(nbytes: int, block_nbytes: int) -> None:
    with pytest.raises(ValueError, match="expected a multiple of block_nbytes"):
        BumpRegion(nbytes, block_nbytes)


def test_ranges_are_dense() -> None:
    region = BumpRegion(32, 16)
    assert [region.take(5), region.take(0), region.take(10)] == [0, 5, 6]
    assert region.take(16) == 16
    assert region.take(1) == FULL
    assert region.taken == 4


def test_a_range_does_not_cross_a_block() -> None:
    region = BumpRegion(32, 16)
    assert [region.take(9), region.take(9)] == [0, 16]


def test_an_empty_open_block_starts_again() -> None:
    region = BumpRegion(16, 16)
    region.free(region.take(10))
    assert region.take(16) == 0


def test_a_block_is_free_when_its_last_range_is() -> None:
    region = BumpRegion(32, 16)
    first, second, third = region.take(8), region.take(8), region.take(16)
    region.free(first)
    assert region.take(16) == FULL
    region.free(second)
    assert region.take(16) == 0
    region.free(third)
    assert region.take(4) == 16


def test_freeing_twice_is_a_bug() -> None:
    region = BumpRegion(16, 16)
    region.free(region.take(1))
    with pytest.raises(AssertionError, match="freed twice"):
        region.free(0)


@given(st.lists(st.one_of(st.integers(0, 16), st.floats(0, 1)), max_size=60))
def test_ranges_never_overlap(program: list[int | float]) -> None:
    """An integer takes so many bytes; a fraction frees the range at that place of those that are taken."""
    region = BumpRegion(64, 16)
    ranges: list[tuple[int, int]] = []
    for step in program:
        if isinstance(step, int):
            offset = region.take(step)
            if offset == FULL:
                continue
            end = offset + max(1, step)
            assert all(end <= start or stop <= offset for start, stop in ranges)
            assert offset >= 0
            assert end <= 64
            ranges.append((offset, end))
        elif ranges:
            start, _ = ranges.pop(int(step * (len(ranges) - 1)))
            region.free(start)
        assert region.taken == len(ranges)
    for start, _ in ranges:
        region.free(start)
    assert [region.take(16) for _ in range(4)].count(FULL) == 0
