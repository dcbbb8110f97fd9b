"""A backend that computes next to nothing and fails when told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trioserve.backends import Backend, LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from trioserve.backends import Arrays, LoadContext


class FakeModelError(Exception):
    """Raised by a fake backend that was told to fail."""


class FakeBackend(Backend):
    """Every element of an output row is the sum of that row's inputs, so a result shows whose it is.

    Args:
        fails: Called with the inputs of each batch; the batch raises where it returns True.
    """

    def __init__(self, fails: Callable[[Arrays], bool] | None = None) -> None:
        self.calls: list[int] = []
        """Rows of each call so far, failed ones too."""
        self.closed = False
        self._fails = fails
        self._inputs = 0

    def load(self, ctx: LoadContext) -> None:
        """Remember how many inputs there are."""
        if not ctx.file.is_file():
            raise LoadError(f"{ctx.file}: no such file")
        self._inputs = len(ctx.input_names)

    def infer(self, inputs: Arrays, out: Arrays) -> Arrays:
        """Sum the rows, or fail."""
        if len(inputs) != self._inputs:
            raise ValueError(f"{len(inputs)} inputs, expected {self._inputs}")
        self.calls.append(len(inputs[0]))
        if self._fails is not None and self._fails(inputs):
            raise FakeModelError("told to fail")
        sums = row_sums(inputs)
        for place in out:
            place[...] = sums.reshape(-1, *[1] * (place.ndim - 1)).astype(place.dtype)
        return out

    def close(self) -> None:
        """Remember that it was called."""
        self.closed = True


def row_sums(inputs: Arrays) -> npt.NDArray[np.float64]:
    """The sum of each row over all inputs, f64[rows]."""
    rows = len(inputs[0])
    total: npt.NDArray[Any] = np.zeros(rows)
    for array in inputs:
        total = total + array.reshape(rows, -1).astype(np.float64).sum(axis=1)
    return total
