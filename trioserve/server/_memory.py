"""The shared memory of a server: one arena a model."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from trioserve.backends import signature_of
from trioserve.config import ModelConfig
from trioserve.engine import text_region_nbytes
from trioserve.memory import Arena, Slab, SlabLayout, plan_slab

MIN_BLOCKS: Final = 5
"""Batches that a slab has room for at least: three with the worker, one being formed, one whose body arrives."""


def layout_of(config: ModelConfig) -> SlabLayout:
    """The slab of a model. Its slots are rounded up to whole batches, so that a batch is one block of them.

    Raises:
        LoadError: the configuration's tensors are no signature.
    """
    max_rows = config.batching.max_rows
    blocks = max(MIN_BLOCKS, -(-config.slots // max_rows))
    tokenizer = config.tokenizer
    return plan_slab(
        signature_of(config),
        blocks * max_rows,
        max_tokens=tokenizer.max_tokens if tokenizer else 0,
        text_nbytes=text_region_nbytes(config)[0] if tokenizer else 0,
    )


class ServerMemory:
    """Arenas and slabs of all models, for the time of a `with` block.

    Args:
        models: in the order of `arenas` and `slabs`.

    Ownership: leaving the block closes the arenas; nothing of them is left anywhere, whatever happens to the process.
    """

    def __init__(self, models: Sequence[ModelConfig]) -> None:
        self._models: Final = models
        self.arenas: list[Arena] = []
        self.slabs: list[Slab] = []

    def __enter__(self) -> Self:
        """Makes the arenas; pages are taken only as rows are used."""
        try:
            for model in self._models:
                self.make(model)
        except BaseException:
            self._close()
            raise
        return self

    def make(self, model: ModelConfig) -> tuple[Arena, Slab]:
        """Makes one more.

        Raises:
            LoadError: the configuration's tensors are no signature.
            OSError: the kernel refuses.
        """
        layout = layout_of(model)
        arena = Arena.create(layout.total_nbytes, model.name)
        self.arenas.append(arena)
        slab = Slab(arena, layout)
        self.slabs.append(slab)
        return arena, slab

    def release(self, slab: Slab) -> None:
        """Gives the memory of one back; nobody uses its rows any more, in no process."""
        at = self.slabs.index(slab)
        del self.slabs[at]
        arena = self.arenas.pop(at)
        arena.empty()
        arena.close()

    def arena_of(self, slab: Slab) -> Arena:
        """Where a slab lies."""
        return self.arenas[self.slabs.index(slab)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes them."""
        self._close()

    def _close(self) -> None:
        self.slabs.clear()
        for arena in self.arenas:
            arena.close()
        self.arenas.clear()
