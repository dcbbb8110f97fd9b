"""Descriptors: what is packed comes back, and whatever is flipped, cut or forged is corruption."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching._queue import MAX_RANGES
from trioserve.config._model import MAX_BATCH_ROWS
from trioserve.config._rules import MAX_TEXT_BATCH_ROWS
from trioserve.engine._tokenizer import BURST_ROWS
from trioserve.execution._descriptors import (
    MAX_MESSAGE_NBYTES,
    CorruptDescriptor,
    ModelBounds,
    StageBatch,
    StageResult,
    is_echo,
    pack_batch,
    pack_echo,
    pack_result,
    unpack_batch,
    unpack_result,
)

SLOTS = 500
PLAIN = ModelBounds(SLOTS, 200)
TOKENS = ModelBounds(SLOTS, 200, max_length=64, min_length=1)
TEXT = ModelBounds(SLOTS, 200, max_length=300, text_nbytes=1000)
BOUNDS = [PLAIN, TOKENS, TEXT]
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def batches(draw: st.DrawFn) -> StageBatch:
    model = draw(st.integers(0, 2))
    count = st.integers(1, 20)
    ranges = tuple(
        (draw(st.integers(0, SLOTS - n)), n) for n in draw(st.lists(count, min_size=1, max_size=10))
    )
    rows = sum(n for _, n in ranges)
    lengths = offsets = None
    if model:
        top = BOUNDS[model].max_length
        lengths = np.array(draw(st.lists(st.integers(1, top), min_size=rows, max_size=rows)), np.uint32)
    if model == 2:
        offsets = np.array(draw(st.lists(st.integers(0, 700), min_size=rows, max_size=rows)), np.uint32)
    return StageBatch(model, draw(U64), ranges, lengths, offsets)


@st.composite
def results(draw: st.DrawFn) -> tuple[StageResult, int]:
    rows = draw(st.integers(1, 30))
    bad = sorted(draw(st.sets(st.integers(0, rows - 1), max_size=5)))
    failures = tuple((row, draw(st.integers(1, 0xFFFF)), draw(st.text(max_size=20))) for row in bad)
    lengths = draw(st.none() | st.lists(U32, min_size=rows, max_size=rows))
    result = StageResult(
        draw(st.integers(0, 9)), draw(U64), draw(st.integers(0, 0xFFFF)), draw(st.text(max_size=30)),
        draw(U64), draw(U64), draw(U64), draw(U64), draw(U32), draw(U32), failures,
        None if lengths is None else np.array(lengths, np.uint32),
    )  # fmt: skip
    return result, rows


def same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in zip(left, right, strict=True)
    )


@given(batches(), U32)
def test_a_batch_comes_back(batch: StageBatch, epoch: int) -> None:
    message = pack_batch(batch, epoch)
    assert 0 < len(message) <= MAX_MESSAGE_NBYTES
    assert same(unpack_batch(memoryview(message), epoch=epoch, bounds=BOUNDS), batch)


@given(results(), U32)
def test_a_result_comes_back(made: tuple[StageResult, int], epoch: int) -> None:
    result, rows = made
    message = memoryview(bytearray(pack_result(result, epoch, rows)))
    found = unpack_result(message, epoch=epoch, model=result.model, seq=result.seq, rows=rows)
    message[:] = bytes(len(message))
    assert same(found, result)


EXAMPLES = [
    StageBatch(0, 7, ((3, 20),)),
    StageBatch(0, 7, ((3, 20), (40, 2))),
    StageBatch(1, 7, ((3, 3),), np.array([1, 2, 64], np.uint32)),
    StageBatch(2, 7, ((3, 2),), np.array([0, 300], np.uint32), np.array([0, 700], np.uint32)),
]
RESULTS = [
    StageResult(0, 7, 0, "", 1, 2, 3, 4, 0, 0),
    StageResult(
        0, 7, 0, "", 1, 2, 3, 4, 5, 6, ((1, 269, "raised"), (2, 269, "")), np.arange(3, dtype=np.uint32)
    ),
    StageResult(0, 7, 14, "gone", 1, 2, 3, 4, 5, 6),
]


def mutants(message: bytes) -> Iterator[bytes]:
    """The message with each byte set to each other value of a spread, and each shorter or longer one."""
    for at, byte in enumerate(message):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 0xFF):
            yield message[:at] + bytes([byte ^ flip]) + message[at + 1 :]
    for end in range(len(message)):
        yield message[:end]
    yield message + b"\0"
    yield message + bytes(4)


@pytest.mark.parametrize("batch", EXAMPLES)
def test_every_mutant_of_a_batch_is_corruption(batch: StageBatch) -> None:
    for message in mutants(pack_batch(batch, 9)):
        with pytest.raises(CorruptDescriptor):
            unpack_batch(memoryview(message), epoch=9, bounds=BOUNDS)


@pytest.mark.parametrize("result", RESULTS)
def test_every_mutant_of_a_result_is_corruption(result: StageResult) -> None:
    for message in mutants(pack_result(result, 9, 3)):
        with pytest.raises(CorruptDescriptor):
            unpack_result(memoryview(message), epoch=9, model=0, seq=7, rows=3)


def u32(*values: int) -> npt.NDArray[np.uint32]:
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    "batch",
    [
        StageBatch(3, 7, ((0, 1),)),
        StageBatch(0, 7, ((0, 0),)),
        StageBatch(0, 7, ((0, 4), (9, 0))),
        StageBatch(0, 7, ((SLOTS, 1),)),
        StageBatch(0, 7, ((SLOTS - 3, 4),)),
        StageBatch(0, 7, ((2**32 - 1, 2**32 - 1),)),
        StageBatch(0, 7, ((0, 201),)),
        StageBatch(0, 7, ((0, 200), (200, 1))),
        StageBatch(0, 7, ((0, 1),), u32(5)),
        StageBatch(1, 7, ((0, 1),)),
        StageBatch(1, 7, ((0, 1),), u32(0)),
        StageBatch(1, 7, ((0, 1),), u32(65)),
        StageBatch(1, 7, ((0, 1),), u32(5), u32(0)),
        StageBatch(2, 7, ((0, 1),), u32(5)),
        StageBatch(2, 7, ((0, 1),), u32(301), u32(0)),
        StageBatch(2, 7, ((0, 1),), u32(300), u32(701)),
        StageBatch(2, 7, ((0, 1),), u32(300), u32(2**32 - 1)),
    ],
)
def test_a_sealed_batch_out_of_bounds_is_corruption(batch: StageBatch) -> None:
    with pytest.raises(CorruptDescriptor):
        unpack_batch(memoryview(pack_batch(batch, 9)), epoch=9, bounds=BOUNDS)


def test_a_batch_of_another_epoch_or_kind_is_corruption() -> None:
    message = memoryview(pack_batch(EXAMPLES[0], 9))
    with pytest.raises(CorruptDescriptor, match="epoch 9, expected"):
        unpack_batch(message, epoch=10, bounds=BOUNDS)
    with pytest.raises(CorruptDescriptor, match="kind 2"):
        unpack_batch(memoryview(pack_result(RESULTS[0], 9, 3)), epoch=9, bounds=BOUNDS)


@pytest.mark.parametrize("other", [{"epoch": 10}, {"model": 1}, {"seq": 8}, {"rows": 4}])
def test_a_result_of_another_batch_is_corruption(other: dict[str, int]) -> None:
    expected = {"epoch": 9, "model": 0, "seq": 7, "rows": 3} | other
    with pytest.raises(CorruptDescriptor, match="expected the result of"):
        unpack_result(memoryview(pack_result(RESULTS[0], 9, 3)), **expected)


@pytest.mark.parametrize(
    "failures", [((3, 1, ""),), ((1, 0, ""),), ((1, 1, ""), (1, 1, "")), ((2, 1, ""), (1, 1, ""))]
)
def test_failures_out_of_bounds_are_corruption(failures: tuple[tuple[int, int, str], ...]) -> None:
    message = pack_result(RESULTS[0]._replace(failures=failures), 9, 3)
    with pytest.raises(CorruptDescriptor):
        unpack_result(memoryview(message), epoch=9, model=0, seq=7, rows=3)


def test_a_batch_too_large_for_a_message_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 16384"):
        pack_batch(StageBatch(0, 1, tuple((i, 1) for i in range(2100))), 9)


@pytest.mark.parametrize("column", [np.arange(2, dtype=np.uint32), np.arange(3, dtype=np.int64)])
def test_a_column_has_one_u32_a_row(column: npt.NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="for 3 rows of uint32"):
        pack_batch(StageBatch(1, 1, ((0, 3),), column), 9)


def test_long_messages_are_cut_and_many_are_dropped() -> None:
    many = tuple((row, 269, "x" * 300) for row in range(200))
    message = pack_result(RESULTS[0]._replace(failures=many), 9, 200)
    found = unpack_result(memoryview(message), epoch=9, model=0, seq=7, rows=200)
    assert found.failures == tuple((row, 269, "") for row in range(200))
    few = pack_result(RESULTS[0]._replace(failures=many[:2], message="é" * 150), 9, 200)
    found = unpack_result(memoryview(few), epoch=9, model=0, seq=7, rows=200)
    assert [len(text) for _, _, text in found.failures] == [200, 200]
    assert found.message == "é" * 100


def test_an_echo_is_told_from_the_others() -> None:
    assert is_echo(memoryview(pack_echo(9, 1)))
    assert not is_echo(memoryview(pack_batch(EXAMPLES[0], 9)))
    assert not is_echo(memoryview(pack_result(RESULTS[0], 9, 3)))


def failed(rows: int, lengths: npt.NDArray[np.uint32] | None = None) -> StageResult:
    """A batch of which every row has failed, with as much to say of it as there may be."""
    failures = tuple((row, 1, "why" * 100) for row in range(rows))
    return StageResult(0, 1, 1, "why" * 100, 1, 2, 3, 4, 0, 0, failures, lengths)


def test_the_largest_batches_that_can_be_configured_fit_in_a_message_in_any_case() -> None:
    most, most_texts = MAX_BATCH_ROWS, MAX_TEXT_BATCH_ROWS
    column = np.ones(most_texts, np.uint32)
    alone = tuple((row, 1) for row in range(most_texts))
    for message in (
        pack_batch(StageBatch(0, 1, tuple((row, 2) for row in range(MAX_RANGES))), 1),
        pack_batch(StageBatch(0, 1, alone, column), 1),
        pack_batch(StageBatch(0, 1, ((0, most_texts),), column, column), 1),
        pack_batch(StageBatch(0, 1, alone[:BURST_ROWS], column[:BURST_ROWS], column[:BURST_ROWS]), 1),
        pack_result(failed(most), 1, most),
        pack_result(failed(most_texts, column), 1, most_texts),
    ):
        assert len(message) <= MAX_MESSAGE_NBYTES
