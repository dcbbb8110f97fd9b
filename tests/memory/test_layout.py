"""Slab layout: contiguous rows, aligned regions, nothing overlaps; arrays over an arena."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.memory import Arena, Slab, SlabLayout, plan_slab
from trioserve_protocol import DType, Signature, TensorSpec

Specs = tuple[TensorSpec, ...]
FIXED = [dtype for dtype in DType if dtype is not DType.BYTES]


def specs(prefix: str) -> st.SearchStrategy[Specs]:
    spec = st.tuples(st.sampled_from(FIXED), st.lists(st.integers(1, 7), max_size=3))
    return st.lists(spec, min_size=1, max_size=4).map(
        lambda found: tuple(
            TensorSpec(f"{prefix}{i}", dtype, (-1, *shape)) for i, (dtype, shape) in enumerate(found)
        )
    )


def spans(layout: SlabLayout) -> list[tuple[int, int]]:
    """(start, end) of every region."""
    found = [(r.offset, r.offset + layout.slots * r.row_nbytes) for r in (*layout.inputs, *layout.outputs)]
    found.append((layout.tokens_offset, layout.tokens_offset + 4 * layout.slots * layout.max_tokens))
    found.append((layout.text_offset, layout.text_offset + layout.text_nbytes))
    return found


@given(specs("i"), specs("o"), st.integers(1, 50), st.integers(0, 20), st.integers(0, 1000))
def test_regions_are_aligned_and_disjoint(
    inputs: Specs, outputs: Specs, slots: int, max_tokens: int, text_nbytes: int
) -> None:
    layout = plan_slab(Signature(inputs, outputs), slots, max_tokens=max_tokens, text_nbytes=text_nbytes)
    previous = 0
    for start, end in spans(layout):
        assert start % 64 == 0
        assert start >= previous
        previous = end
    assert previous <= layout.total_nbytes
    assert msgspec.json.decode(msgspec.json.encode(layout), type=SlabLayout) == layout


@given(specs("i"), specs("o"), st.integers(1, 20))
def test_rows_are_contiguous_and_separate(inputs: Specs, outputs: Specs, slots: int) -> None:
    layout = plan_slab(Signature(inputs, outputs), slots)
    arena = Arena.create(layout.total_nbytes, "test")
    slab = Slab(arena, layout)
    for number, rows in enumerate((*slab.input_bytes, *slab.output_bytes)):
        rows[...] = number + 1
    for number, (array, spec) in enumerate(zip((*slab.inputs, *slab.outputs), inputs + outputs, strict=True)):
        assert array.shape == (slots, *spec.row_shape)
        assert array.dtype == spec.dtype.numpy
        assert array[: slots // 2 + 1].flags.c_contiguous
        assert set(array.tobytes()) == {number + 1}
    arena.close()


@pytest.fixture
def text_slab() -> Iterator[Slab]:
    signature = Signature((TensorSpec("text", DType.BYTES, (-1,)),), (TensorSpec("e", DType.F32, (-1, 3)),))
    layout = plan_slab(signature, 8, max_tokens=5, text_nbytes=100)
    arena = Arena.create(layout.total_nbytes, "test")
    yield Slab(arena, layout)
    arena.close()


def test_text_model_has_tokens_and_text(text_slab: Slab) -> None:
    assert text_slab.inputs[0].shape == (8, 0)
    assert len(text_slab.input_views[0]) == 0
    assert text_slab.tokens.shape == (8, 5)
    assert text_slab.tokens.dtype == np.uint32
    assert len(text_slab.text) == 100
    text_slab.text[99] = 1
    text_slab.tokens[...] = 2
    assert text_slab.text[99] == 1


def test_views_are_the_rows() -> None:
    signature = Signature((TensorSpec("x", DType.F32, (-1, 4)),), (TensorSpec("y", DType.F32, (-1,)),))
    layout = plan_slab(signature, 10)
    arena = Arena.create(layout.total_nbytes, "test")
    slab = Slab(arena, layout)
    slab.input_views[0][32:48] = np.array([1, 2, 3, 4], np.float32).tobytes()
    assert slab.inputs[0][2].tolist() == [1, 2, 3, 4]
    assert slab.outputs[0].shape == (10,)
    arena.close()


def test_poison_fills_the_rows_named_and_no_others(text_slab: Slab) -> None:
    text_slab.poison(2, 3)
    for rows in (text_slab.output_bytes[0], text_slab.tokens.view(np.uint8)):
        assert (rows[2:5] == 0xA5).all()
        assert not rows[:2].any()
        assert not rows[5:].any()


def test_arena_may_be_too_small() -> None:
    signature = Signature((TensorSpec("x", DType.F64, (-1, 512)),), (TensorSpec("y", DType.F32, (-1,)),))
    layout = plan_slab(signature, 10)
    arena = Arena.create(4096, "test")
    with pytest.raises(ValueError, match="the arena has 4096"):
        Slab(arena, layout)
    arena.close()


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "match"),
    [
        (DType.F32, DType.BYTES, {}, "output 'o' is BYTES"),
        (DType.BYTES, DType.F32, {}, "needs a text region"),
        (DType.F32, DType.F32, {"slots": 0}, "out of range"),
        (DType.F32, DType.F32, {"max_tokens": -1}, "out of range"),
    ],
)
def test_refuses_what_cannot_be_laid_out(
    inputs: DType, outputs: DType, options: dict[str, Any], match: str
) -> None:
    signature = Signature((TensorSpec("i", inputs, (-1,)),), (TensorSpec("o", outputs, (-1,)),))
    with pytest.raises(ValueError, match=match):
        plan_slab(signature, **{"slots": 4, **options})
