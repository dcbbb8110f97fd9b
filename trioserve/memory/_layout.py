"""Where the rows of a model lie in its arena: pure arithmetic, and the arrays over it.

One region a tensor, 64-byte aligned, with a row stride of exactly `row_nbytes`: rows `[a, b)` of a region are one
contiguous C array, which is what lets a batch be used in place, a payload be received into it and a device copy
it in one piece.

    | inputs 0 .. i | outputs 0 .. o | tokens u32[slots, max_tokens] | text bytes |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from trioserve_protocol import DType

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from trioserve.memory._arena import Arena
    from trioserve_protocol import Signature, TensorSpec

ALIGNMENT_NBYTES: Final = 64
"""A cache line, and the widest vector load."""

POISON: Final = 0xA5
"""Byte that tests fill freed rows with: as f32 a small negative number that no honest model returns."""

TOKEN_NBYTES: Final = 4


class Region(msgspec.Struct, frozen=True):
    """The rows of one tensor. A BYTES tensor has rows of 0 bytes: its text lies in the text region."""

    name: str
    """Name of the tensor in the signature."""

    dtype: str
    """Name of the `DType`, such as `F32`."""

    row_shape: tuple[int, ...]
    """Shape of one row, without the leading batch dimension."""

    offset: int
    """Bytes from the start of the arena, a multiple of 64."""

    row_nbytes: int
    """Bytes of one row, and the distance between two."""


class SlabLayout(msgspec.Struct, frozen=True):
    """The layout of one model's slab. Encodes to JSON, so that a worker builds the same arrays over the same arena."""

    slots: int
    """Rows of every region."""

    inputs: tuple[Region, ...]
    """In the order of the signature."""

    outputs: tuple[Region, ...]
    """In the order of the signature."""

    max_tokens: int
    """Columns of the tokens region; 0 for a model without a tokenizer."""

    tokens_offset: int
    """Bytes from the start of the arena to u32[slots, max_tokens]."""

    text_offset: int
    """Bytes from the start of the arena to the text."""

    text_nbytes: int
    """Bytes of the text region; 0 for a model without BYTES inputs."""

    total_nbytes: int
    """Bytes an arena for this slab needs."""


def plan_slab(signature: Signature, slots: int, *, max_tokens: int = 0, text_nbytes: int = 0) -> SlabLayout:
    """Lay out a slab.

    Args:
        signature: Inputs and outputs of the model.
        slots: Rows, at least 1.
        max_tokens: Tokens of the longest row of a text model, else 0.
        text_nbytes: Bytes for the texts of the requests that wait, at least 1 if an input is BYTES, else 0.

    Raises:
        ValueError: An argument is out of range, an output is BYTES, or a BYTES input has no text region.
    """
    if slots < 1 or max_tokens < 0 or text_nbytes < 0:
        raise ValueError(f"slots {slots}, max_tokens {max_tokens}, text_nbytes {text_nbytes}: out of range")
    for spec in signature.outputs:
        if spec.dtype is DType.BYTES:
            raise ValueError(f"output {spec.name!r} is BYTES: rows of a result have a fixed size")
    if text_nbytes == 0 and any(spec.dtype is DType.BYTES for spec in signature.inputs):
        raise ValueError("a model with a BYTES input needs a text region")
    inputs, offset = _place(signature.inputs, slots, 0)
    outputs, tokens_offset = _place(signature.outputs, slots, offset)
    text_offset = _align(tokens_offset + slots * max_tokens * TOKEN_NBYTES)
    return SlabLayout(
        slots=slots,
        inputs=inputs,
        outputs=outputs,
        max_tokens=max_tokens,
        tokens_offset=tokens_offset,
        text_offset=text_offset,
        text_nbytes=text_nbytes,
        total_nbytes=_align(text_offset + text_nbytes),
    )


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES


def _place(specs: Iterable[TensorSpec], slots: int, offset: int) -> tuple[tuple[Region, ...], int]:
    regions = []
    for spec in specs:
        nbytes = spec.row_nbytes
        regions.append(Region(spec.name, spec.dtype.name, tuple(spec.row_shape), offset, nbytes))
        offset = _align(offset + slots * nbytes)
    return tuple(regions), offset


class Slab:
    """Arrays over one model's rows. Index them by slot: `slab.inputs[0][first:first + count]` is a contiguous batch.

    Ownership:
        The arrays share the arena's memory and keep its mapping alive. A slab neither owns nor closes the arena.
    """

    __slots__ = (
        "input_bytes",
        "input_views",
        "inputs",
        "layout",
        "output_bytes",
        "outputs",
        "text",
        "tokens",
    )

    layout: SlabLayout

    inputs: tuple[npt.NDArray[Any], ...]
    """One array an input, (slots, *row_shape); BF16 as uint16, BYTES as u8[slots, 0]."""

    outputs: tuple[npt.NDArray[Any], ...]
    """One array an output, (slots, *row_shape)."""

    input_bytes: tuple[npt.NDArray[np.uint8], ...]
    """The inputs again, as u8[slots, row_nbytes]."""

    output_bytes: tuple[npt.NDArray[np.uint8], ...]
    """The outputs again, as u8[slots, row_nbytes]."""

    input_views: tuple[memoryview, ...]
    """The inputs again, as flat writable bytes: slot `s` of input `i` starts at `s * row_nbytes`."""

    tokens: npt.NDArray[np.uint32]
    """Token ids, u32[slots, max_tokens]; (slots, 0) for a model without a tokenizer."""

    text: memoryview
    """Text region, bytes; empty for a model without BYTES inputs."""

    def __init__(self, arena: Arena, layout: SlabLayout) -> None:
        """Build the arrays.

        Raises:
            ValueError: The arena is smaller than the layout, or closed.
        """
        if arena.nbytes < layout.total_nbytes:
            raise ValueError(f"the layout needs {layout.total_nbytes} bytes, the arena has {arena.nbytes}")
        view, slots = arena.view, layout.slots
        self.layout = layout
        self.inputs = tuple(_typed(view, region, slots) for region in layout.inputs)
        self.outputs = tuple(_typed(view, region, slots) for region in layout.outputs)
        self.input_bytes = tuple(_raw(view, region, slots) for region in layout.inputs)
        self.output_bytes = tuple(_raw(view, region, slots) for region in layout.outputs)
        self.input_views = tuple(
            view[region.offset : region.offset + slots * region.row_nbytes] for region in layout.inputs
        )
        self.tokens = np.ndarray(
            (slots, layout.max_tokens), np.uint32, buffer=view, offset=layout.tokens_offset
        )
        self.text = view[layout.text_offset : layout.text_offset + layout.text_nbytes]

    def poison(self, first: int, count: int) -> None:
        """Fill `count` rows from slot `first` with 0xA5 in every region but the text.

        For tests: a row that is read before it is written then shows.
        """
        for rows in (*self.input_bytes, *self.output_bytes, self.tokens.view(np.uint8)):
            rows[first : first + count] = POISON


def _typed(view: memoryview, region: Region, slots: int) -> npt.NDArray[Any]:
    dtype = DType[region.dtype].numpy
    if dtype is None:
        return np.ndarray((slots, 0), np.uint8)
    return np.ndarray((slots, *region.row_shape), dtype, buffer=view, offset=region.offset)


def _raw(view: memoryview, region: Region, slots: int) -> npt.NDArray[np.uint8]:
    return np.ndarray((slots, region.row_nbytes), np.uint8, buffer=view, offset=region.offset)
