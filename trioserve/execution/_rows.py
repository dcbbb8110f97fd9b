"""Where the rows of a batch lie: in one piece, gathered from several, or built from token ids.

A batch may have to be run again in parts when the model raises, so all of these hand out any part `[start, stop)`
of its positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from trioserve.backends import Arrays
    from trioserve.execution._descriptors import StageBatch
    from trioserve.memory import Slab

    Ranges = tuple[tuple[int, int], ...]


class BatchInputs(Protocol):
    """Input arrays of a batch, by positions."""

    def inputs(self, start: int, stop: int) -> Arrays:
        """Arrays of positions `[start, stop)`, as the backend takes them, valid until the next call."""

    def padding(self, start: int, stop: int) -> int:
        """Rows or tokens in them that no request asked for."""


class InPlace:
    """One range: the slab's own rows, nothing copied."""

    __slots__ = ("_arrays", "_first")

    def __init__(self, arrays: Arrays, first: int) -> None:
        self._arrays = arrays
        self._first = first

    def inputs(self, start: int, stop: int) -> Arrays:
        """See `BatchInputs`."""
        first = self._first
        return tuple([array[first + start : first + stop] for array in self._arrays])

    def padding(self, start: int, stop: int) -> int:  # noqa: ARG002  the interface of a batch that is padded
        """None."""
        return 0


class Staging:
    """Rows outside of the slab, for batches of several ranges. Preallocated: a batch never allocates.

    Memory is committed as it is used, so a model whose batches always come in one range pays nothing.
    """

    __slots__ = ("_targets", "inputs", "outputs")

    inputs: Arrays
    """Gathered input rows, read-only."""

    outputs: Arrays
    """Rows for results on their way to several ranges."""

    def __init__(self, slab: Slab, max_rows: int) -> None:
        self._targets = tuple(np.zeros((max_rows, *a.shape[1:]), a.dtype) for a in slab.inputs)
        self.inputs = tuple(read_only(target) for target in self._targets)
        self.outputs = tuple(np.zeros((max_rows, *a.shape[1:]), a.dtype) for a in slab.outputs)

    def gather(self, arrays: Arrays, ranges: Ranges) -> None:
        """Copy ranges of the slab's input rows together, in order, into `inputs`."""
        for source, target in zip(arrays, self._targets, strict=True):
            at = 0
            for first, count in ranges:
                target[at : at + count] = source[first : first + count]
                at += count


class TokenRows:
    """Token ids of text rows, as the arrays that a text model takes.

    padded: `input_ids`, `attention_mask`, i64[rows, longest];
    packed: `input_ids`, `position_ids`, `segment_ids`, i64[tokens].
    """

    __slots__ = ("_lengths", "_packed", "_ranges", "_tokens")

    def __init__(self, tokens: npt.NDArray[np.uint32], batch: StageBatch, layout: str) -> None:
        if batch.lengths is None:
            raise AssertionError("a batch of a text model without lengths: this is a bug")
        self._tokens = tokens
        self._ranges = batch.ranges
        self._lengths = batch.lengths
        self._packed = layout == "packed"

    def inputs(self, start: int, stop: int) -> Arrays:
        """See `BatchInputs`."""
        lengths = self._lengths[start:stop]
        longest = int(lengths.max())
        rows = [
            self._tokens[first : first + count, :longest]
            for first, _, count in clipped(self._ranges, start, stop)
        ]
        ids = rows[0] if len(rows) == 1 else np.concatenate(rows)
        real = np.arange(longest, dtype=np.uint32) < lengths[:, None]
        if self._packed:
            positions = np.broadcast_to(np.arange(longest, dtype=np.int64), real.shape)[real]
            segments = np.repeat(np.arange(stop - start, dtype=np.int64), lengths)
            return ids[real].astype(np.int64), positions, segments
        return np.multiply(ids, real, dtype=np.int64), real.astype(np.int64)

    def padding(self, start: int, stop: int) -> int:
        """Tokens of the padded rectangle that belong to no text."""
        if self._packed:
            return 0
        lengths = self._lengths[start:stop]
        return int(lengths.max()) * (stop - start) - int(lengths.sum())


class Outputs:
    """Where the results of a batch go: straight into the slab for one range, else by way of staging rows."""

    __slots__ = ("_arrays", "_ranges", "_staging")

    def __init__(self, arrays: Arrays, ranges: Ranges, staging: Arrays) -> None:
        self._arrays = arrays
        self._ranges = ranges
        self._staging = staging

    def places(self, start: int, stop: int) -> Arrays:
        """Arrays that a backend may write the results of positions `[start, stop)` to."""
        if len(self._ranges) > 1:
            return tuple([array[start:stop] for array in self._staging])
        first = self._ranges[0][0]
        return tuple([array[first + start : first + stop] for array in self._arrays])

    def store(self, start: int, stop: int, results: Arrays, places: Arrays) -> None:
        """Bring the results of positions `[start, stop)` to their slots, as far as they are not there."""
        if len(self._ranges) == 1:
            for result, place in zip(results, places, strict=True):
                if result is not place:
                    place[...] = result
            return
        for first, position, count in clipped(self._ranges, start, stop):
            at = position - start
            for result, array in zip(results, self._arrays, strict=True):
                array[first : first + count] = result[at : at + count]


def clipped(ranges: Ranges, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The parts of ranges that positions `[start, stop)` fall into: (first slot, position, count) each."""
    position = 0
    for first, count in ranges:
        low, high = max(start, position), min(stop, position + count)
        if low < high:
            yield first + low - position, low, high - low
        position += count


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, which its receiver cannot write: a failed batch is run again from it."""
    view = array.view()
    view.flags.writeable = False
    return view
