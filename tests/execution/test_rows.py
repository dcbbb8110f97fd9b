"""Where the rows of a batch lie: in place, gathered, as tokens; and where its results go."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.execution import StageBatch
from trioserve.execution._rows import InPlace, Outputs, Staging, TokenRows, clipped, read_only
from trioserve.memory import Arena, Slab, plan_slab
from trioserve_protocol import DType, Signature, TensorSpec

SLOTS = 40

ranges_of_rows = st.lists(st.integers(1, 4), min_size=1, max_size=6).flatmap(
    lambda counts: st.permutations(list(pairwise(np.cumsum([0, *counts]).tolist())))
)


def ranges_of(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(first, count) of shuffled, adjacent or separate spans."""
    return tuple((start, stop - start) for start, stop in spans)


def slots_of(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [slot for first, count in ranges for slot in range(first, first + count)]


@given(ranges_of_rows, st.data())
def test_clipped_is_a_slice_of_the_slots(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    ranges = ranges_of(spans)
    slots = slots_of(ranges)
    start = data.draw(st.integers(0, len(slots) - 1))
    stop = data.draw(st.integers(start + 1, len(slots)))
    found = {}
    for first, position, count in clipped(ranges, start, stop):
        found.update({position + i: first + i for i in range(count)})
    assert [found[p] for p in range(start, stop)] == slots[start:stop]
    assert len(found) == stop - start


@pytest.fixture
def slab() -> Slab:
    signature = Signature((TensorSpec("x", DType.I32, (-1, 2)),), (TensorSpec("y", DType.F32, (-1,)),))
    layout = plan_slab(signature, SLOTS, max_tokens=9)
    made = Slab(Arena.create(layout.total_nbytes, "test"), layout)
    made.inputs[0][...] = np.arange(SLOTS)[:, None]
    made.tokens[...] = np.arange(SLOTS)[:, None] * 100 + np.arange(9)
    return made


def test_one_range_is_the_slab_itself(slab: Slab) -> None:
    (rows,) = InPlace(slab.inputs, 7).inputs(1, 4)
    assert rows[:, 0].tolist() == [8, 9, 10]
    assert np.shares_memory(rows, slab.inputs[0])
    assert rows.flags.c_contiguous


def test_several_ranges_are_copied_in_order(slab: Slab) -> None:
    staging = Staging(slab, 8)
    staging.gather(slab.inputs, ((30, 2), (4, 1), (9, 3)))
    assert staging.inputs[0][:6, 0].tolist() == [30, 31, 4, 9, 10, 11]
    assert not np.shares_memory(staging.inputs[0], slab.inputs[0])
    with pytest.raises(ValueError, match="read-only"):
        staging.inputs[0][0] = 1


def test_read_only_is_the_same_memory() -> None:
    array = np.zeros(3)
    view = read_only(array)
    array[0] = 1
    assert view[0] == 1
    assert array.flags.writeable
    assert not view.flags.writeable


@pytest.mark.parametrize("ranges", [((5, 6),), ((20, 2), (5, 1), (30, 3))])
def test_results_reach_their_slots_and_no_others(slab: Slab, ranges: tuple[tuple[int, int], ...]) -> None:
    slab.outputs[0][...] = -1
    outputs = Outputs(slab.outputs, ranges, Staging(slab, 8).outputs)
    for start, stop in ((0, 2), (2, 5), (5, 6)):
        places = outputs.places(start, stop)
        results = (np.arange(start, stop, dtype=np.float32),)
        if start == 2:
            places[0][...] = results[0]
            results = (places[0],)
        outputs.store(start, stop, results, places)
    expected = np.full(SLOTS, -1.0)
    expected[slots_of(ranges)] = np.arange(6)
    assert slab.outputs[0].tolist() == expected.tolist()


def reference(
    slab: Slab, ranges: tuple[tuple[int, int], ...], lengths: list[int], start: int, stop: int
) -> list[list[int]]:
    slots = slots_of(ranges)
    return [slab.tokens[slots[p], : lengths[p]].tolist() for p in range(start, stop)]


def token_batch(ranges: tuple[tuple[int, int], ...], lengths: list[int]) -> StageBatch:
    return StageBatch(0, 1, ranges, np.array(lengths, np.uint32))


CASES = [(((3, 4),), [2, 9, 1, 5]), (((20, 1), (3, 2), (11, 1)), [2, 9, 1, 5])]


@pytest.mark.parametrize(("ranges", "lengths"), CASES)
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 1), (1, 3), (3, 4)])
def test_padded_tokens(
    slab: Slab, ranges: tuple[tuple[int, int], ...], lengths: list[int], start: int, stop: int
) -> None:
    rows = TokenRows(slab.tokens, token_batch(ranges, lengths), "padded")
    ids, mask = rows.inputs(start, stop)
    expected = reference(slab, ranges, lengths, start, stop)
    longest = max(map(len, expected))
    assert ids.dtype == mask.dtype == np.int64
    assert ids.flags.c_contiguous
    assert mask.flags.c_contiguous
    assert ids.tolist() == [row + [0] * (longest - len(row)) for row in expected]
    assert mask.tolist() == [[1] * len(row) + [0] * (longest - len(row)) for row in expected]
    assert rows.padding(start, stop) == mask.size - int(mask.sum())


@pytest.mark.parametrize(("ranges", "lengths"), CASES)
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (2, 4)])
def test_packed_tokens(
    slab: Slab, ranges: tuple[tuple[int, int], ...], lengths: list[int], start: int, stop: int
) -> None:
    rows = TokenRows(slab.tokens, token_batch(ranges, lengths), "packed")
    arrays: tuple[npt.NDArray[Any], ...] = rows.inputs(start, stop)
    expected = reference(slab, ranges, lengths, start, stop)
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}
    ids, positions, segments = (array.tolist() for array in arrays)
    assert ids == [token for row in expected for token in row]
    assert positions == [place for row in expected for place in range(len(row))]
    assert segments == [index for index, row in enumerate(expected) for _ in row]
    assert rows.padding(start, stop) == 0


def test_tokens_need_lengths(slab: Slab) -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        TokenRows(slab.tokens, StageBatch(0, 1, ((0, 1),)), "padded")
