"""What calls return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trioserve.errors import TrioserveError
from trioserve_protocol import ErrorCode, Timing

Outputs: TypeAlias = Any
"""The output of a model that has one, else a mapping from output name to value: what a caller expects to be given is
known to the caller alone, so this is `Any` to a type checker."""

Json: TypeAlias = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True)
class Inference:
    """One result with what the server said about it.

    Ownership:
        The arrays belong to the caller; nothing of the client refers to them.
    """

    outputs: dict[str, Any]
    """Arrays by output name: `[rows, *row_shape]`, or `row_shape` if the request came without the batch dimension.
    BYTES outputs are object arrays of `bytes`; a single element is `bytes` itself."""

    timing: Timing | None
    """When each phase ended, on the server's clock; None if it was not asked for."""

    server_us: int
    """Time in the server, µs."""

    queue_us: int
    """Part of it spent waiting to be batched, µs."""

    round_trip_us: int
    """From the call to its result as the client saw it, the last attempt only, µs."""

    attempts: int = 1
    """How often the request was sent."""

    @property
    def output(self) -> Outputs:
        """The output of a model that has one, else the mapping of all."""
        return only_or_all(self.outputs)


@dataclass(frozen=True, slots=True)
class Failure:
    """Consecutive requests of an `infer_many` that ended with the same error."""

    first: int
    """Position of the first."""
    count: int
    error: TrioserveError


@dataclass(frozen=True, slots=True)
class ManyResult:
    """Results of many requests as columns, in the order of the inputs.

    Ownership:
        The arrays belong to the caller.
    """

    outputs: dict[str, Any]
    """Columns `[n, *row_shape]` by output name; rows that failed are zeros, or None in BYTES outputs."""

    codes: npt.NDArray[np.uint16]
    """Status of each request, `ErrorCode`; 0 for a result."""

    failures: tuple[Failure, ...] = field(default=())
    """The errors behind the codes that are not 0, in the order in which they arrived."""

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Mask of the requests that have a result."""
        return np.equal(self.codes, ErrorCode.OK)

    @property
    def output(self) -> Outputs:
        """The column of a model that has one output, else the mapping of all."""
        return only_or_all(self.outputs)

    def raise_for_errors(self) -> None:
        """Do nothing if all requests have a result.

        Raises:
            TrioserveError: the error of the first request that has none; a note says how many there are.
        """
        failed = int(np.count_nonzero(self.codes))
        if not failed:
            return
        first = min(self.failures, key=lambda failure: failure.first)
        if not getattr(first.error, "__notes__", None):
            first.error.add_note(
                f"{failed} of {len(self.codes)} requests failed, the first is number {first.first}"
            )
        raise first.error


def only_or_all(outputs: dict[str, Any]) -> Outputs:
    """Return the value of a mapping with one entry, else the mapping."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return outputs
