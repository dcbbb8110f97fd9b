"""What runs a model: one small abstract class, and what it is told when it loads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

    from trioserve.config import ModelConfig
    from trioserve_protocol import Signature

Arrays: TypeAlias = "tuple[Any, ...]"
"""One array a tensor, in order, each with the rows of the whole batch first."""

PADDED_INPUTS = ("input_ids", "attention_mask")
"""What a text model is given in the padded layout: i64[rows, longest] each."""

PACKED_INPUTS = ("input_ids", "position_ids", "segment_ids")
"""What a text model is given in the packed layout: i64[tokens] each."""


class LoadError(Exception):
    """A model cannot be loaded.

    The message says which file or key, what was expected and what is there instead, in words for the person who
    wrote the model.
    """


class OutputError(Exception):
    """A model returned something else than its signature says."""


class RunState:
    """What a model may ask about the batch that it computes."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a backend, and a user's `Model.load`, is told about the model."""

    config: ModelConfig
    """The model's configuration, as read."""

    signature: Signature
    """Inputs and outputs as clients see them."""

    run_state: RunState = field(default_factory=RunState, repr=False, compare=False)
    """Written by the backend."""

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits any more for the batch that is being computed: all of it is cancelled or too late.

        A model whose batches take long looks at it now and then, and raises or returns whatever it likes where it is
        true: nobody sees the result.
        """
        return self.run_state.cancelled

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.config.name

    @property
    def directory(self) -> Path:
        """The model's folder, absolute."""
        return Path(self.config.directory)

    @property
    def file(self) -> Path:
        """The model's own file, absolute; it may not exist."""
        return self.config.file_path

    @property
    def threads(self) -> int:
        """Threads that one batch may use."""
        return self.config.threads

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch."""
        return self.config.batching.max_rows

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the arrays that `infer` is given, in order. A text model is given token ids, not its BYTES input."""
        if self.config.tokenizer is None:
            return tuple(spec.name for spec in self.signature.inputs)
        return PACKED_INPUTS if self.config.batching.layout == "packed" else PADDED_INPUTS

    def path(self, relative: str) -> Path:
        """A file of the model.

        Args:
            relative: Relative to the model's folder.

        Raises:
            LoadError: The path leads out of the folder, or nothing is there.
        """
        directory = self.directory.resolve()
        path = (directory / relative).resolve()
        if not path.is_relative_to(directory):
            raise LoadError(f"{relative}: outside of the model's folder {directory}")
        if not path.exists():
            raise LoadError(f"{relative}: no such file in {directory}")
        return path


class Backend(ABC):
    """One model, loaded, on one device.

    Used by one thread of one worker process: `load` once, then `infer` for each batch, then `close`. Only `interrupt`
    is called from another one.
    `trioserve.testing.BackendContract` checks an implementation against all that is said here.
    """

    xp: ModuleType = np
    """The array module that its arrays belong to."""

    @abstractmethod
    def load(self, ctx: LoadContext) -> None:
        """Make ready to infer. May take long.

        Raises:
            LoadError: The model does not fit its configuration; any other exception is reported with its traceback.
        """

    @abstractmethod
    def infer(self, inputs: Arrays, out: Arrays) -> Arrays:
        """Run the whole batch.

        A row's result depends on that row alone: the same row gives the same result by itself and in every batch,
        to the model's tolerance, whatever stands beside it.

        Args:
            inputs: In the order of `LoadContext.input_names`, C-contiguous and read-only. At least 1 and at most
                `max_rows` rows. Valid until this returns: keep no reference.
            out: One writable array an output, of the shape and dtype that the signature says, contents undefined.

        Returns:
            One array an output, in order, of exactly the shape and dtype of `out`. An implementation that can write its
            results in place does so and returns those arrays of `out`; the executor copies all others there.

        Raises:
            Exception: Whatever the model raises. The batch is then run again in halves until the rows at fault stand
                alone, so a call must leave nothing behind that changes the next.
        """

    def interrupt(self) -> None:  # noqa: B027  optional: not every library can be interrupted
        """Nobody waits any more for the batch that runs, or is about to: let `infer` raise whatever it likes, soon.

        Called from another thread, at most once before `resume`. Doing nothing is allowed; the batch then runs to its
        end and occupies the device until then.
        """

    def resume(self) -> None:  # noqa: B027  as `interrupt`
        """The interrupted batch has ended, whether or not `infer` took notice; the next one must not be hit."""

    def close(self) -> None:  # noqa: B027  optional: most backends have nothing to let go of
        """Let go of device memory, threads and files. Idempotent. Nothing is called afterwards."""


def check_outputs(names: tuple[str, ...], results: Arrays, places: Arrays) -> None:
    """Check what a backend returned.

    Raises:
        OutputError: Not one array an output, or an array of another dtype or shape.
    """
    if len(results) != len(places):
        raise OutputError(f"infer returned {len(results)} arrays, expected {len(places)}")
    for name, result, place in zip(names, results, places, strict=True):
        if result is place:
            continue
        shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
        if shape != place.shape or dtype != place.dtype:
            given = type(result).__name__ if dtype is None else f"{dtype} {list(shape or ())}"
            raise OutputError(f"output {name!r} is {given}, expected {place.dtype} {list(place.shape)}")
