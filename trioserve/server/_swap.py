"""One change of the models, from its plan to the end of what it replaces.

planned -> loading -> holding -> switched -> over
|          |
+----------+-> failed: the models are as they were
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trioserve.config import ModelConfig
    from trioserve.engine import Lane
    from trioserve.execution import ReadyInfo, WorkerKind
    from trioserve.memory import Slab

    from ._learnt import LearntFile
    from ._stages import StageKeeper

Key = tuple[str, int]
"""Name and version of a model."""


class ChangeFailed(Exception):
    """The models could not be changed, and are what they were."""

    def __init__(self, stage: str, reason: str) -> None:
        """Takes where it failed and why, in words for the operator."""
        super().__init__(f"{stage}: {reason}")
        self.stage: Final = stage


class Change(NamedTuple):
    """What is to be served."""

    models: Sequence[ModelConfig]
    """All models, in the order of the worker."""

    fresh: Collection[Key]
    """Of these, the ones that are loaded because of the change, and tested; the others are loaded again as they are."""


@dataclass
class Seat:
    """One model of a change."""

    config: ModelConfig
    is_fresh: bool
    lane: Lane | None
    """That goes on serving it; None if it gets one of its own."""

    contents: str
    """See `contents_of`."""

    slab: Slab | None = None
    """Its own if it gets a lane of its own."""

    learnt: LearntFile | None = None


@dataclass
class Swap:
    """A change that is under way."""

    seats: list[Seat]
    retired: list[Lane]
    """Models that go, or are served by another lane afterwards."""

    with_texts: bool
    """Whether the tokenizer is replaced too."""

    executor: StageKeeper | None = None
    """The new one; none if no model is left."""

    tokenizer: StageKeeper | None = None
    """The new one; none if it stays, or no text model is left."""

    leaving: list[StageKeeper] = field(default_factory=list)
    """The old ones, once others have their places."""

    @property
    def newcomers(self) -> list[StageKeeper]:
        """The new workers."""
        return [keeper for keeper in (self.executor, self.tokenizer) if keeper is not None]


def plan(change: Change, served: Sequence[Lane], contents: Sequence[str]) -> Swap:
    """What a change takes.

    Args:
        change: what is wanted.
        served: what there is.
        contents: of each wanted model, now.
    """
    lanes = {key_of(lane.config): lane for lane in served}
    seats = []
    for config, mark in zip(change.models, contents, strict=True):
        lane = lanes.get(key_of(config))
        if lane is not None and terms_of(lane.config) != terms_of(config):
            lane = None
        seats.append(Seat(config, key_of(config) in change.fresh, lane, mark))
    kept = [seat.lane for seat in seats]
    retired = [lane for lane in served if lane not in kept]
    touched = [lane.config for lane in retired] + [seat.config for seat in seats if seat.is_fresh]
    return Swap(seats, retired, with_texts=any(config.tokenizer is not None for config in touched))


def key_of(config: ModelConfig) -> Key:
    """What tells a model from others."""
    return config.name, config.version


def terms_of(config: ModelConfig) -> ModelConfig:
    """What a lane is made of: a configuration without what says only where the model comes from and how it is run."""
    tokenizer = config.tokenizer
    if tokenizer is not None:
        tokenizer = msgspec.structs.replace(tokenizer, file="-", sha256="")
    return msgspec.structs.replace(
        config, backend="python", file="-", class_name="", args={}, sha256="", tokenizer=tokenizer, threads=1,
        warmup=True, directory="",
    )  # fmt: skip


def check_ready(swap: Swap, infos: Mapping[WorkerKind, ReadyInfo]) -> None:
    """Looks at what new workers say of their models.

    Args:
        swap: the change.
        infos: of each new worker.

    Raises:
        ChangeFailed: one cannot be served; or one that is loaded because of the change is doubtful.
    """
    for info in infos.values():
        for model in info.models:
            if model.error:
                raise ChangeFailed(model.stage, fault_of(model.name, model.error))
    if "executor" in infos:
        for seat, model in zip(swap.seats, infos["executor"].models, strict=True):
            if seat.is_fresh and model.doubt:
                raise ChangeFailed(model.stage, fault_of(model.name, model.doubt))


def fault_of(name: str, reason: str) -> str:
    """Why a model does not serve, its name first; most reasons begin with it already."""
    return f"{name}: {reason.removeprefix(f'{name}: ')}"
