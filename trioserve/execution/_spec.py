"""What a worker is to be, and what it turned out to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trioserve.config import ModelConfig
    from trioserve.execution._messages import ModelReady, WorkerKind
    from trioserve.memory import Arena, SlabLayout


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One model of a worker. An executor and a tokenizer of the same model share its arena."""

    config: ModelConfig

    layout: SlabLayout
    """Where the model's rows lie in the arena."""

    arena: Arena
    """Owned by the server; the worker maps it by its descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker process and how it is kept alive."""

    kind: WorkerKind
    """`executor` runs models, `tokenizer` turns the text of their rows into token ids."""

    models: tuple[WorkerModel, ...]
    """In the order of the index that `StageBatch.model` carries."""

    gently: bool = False
    """Whether it is to load at a low priority, because others serve meanwhile. Only at its first start."""

    depth: int = 0
    """Batches that may be with the worker at a time, 1 to 3; 0 lets it follow from the measured hop and service
    time."""

    start_timeout_s: float = 120.0
    """Longest that starting, loading and warming up may take, seconds."""

    grace_s: float = 5.0
    """How long a worker may take to finish what it holds when told to stop, seconds; then it is killed."""

    max_restarts: int = 1
    """Deaths within `restart_window_s` after which a worker is started again; after one more its models are closed, and
    it is only tried now and then."""

    restart_window_s: float = 60.0
    """Time after which a death is forgotten, seconds."""

    restart_backoff_s: float = 0.1
    """Longest pause before a restart, seconds; doubled with each death that is not forgotten, up to 10 s."""

    retry_failed_s: float = 30.0
    """Longest pause between two trials of a worker that dies again and again, seconds."""

    spare: int = 0
    """1: a second worker is kept ready, which takes over when the first is lost."""


class ReadyInfo(NamedTuple):
    """A worker that serves."""

    epoch: int
    """Number of its start, from 1."""

    pid: int
    """Its process id."""

    hop_ns: int
    """Median round trip of an empty message between server and worker, nanoseconds."""

    depth: int
    """Batches that may be with it at a time: as specified, or chosen by measurement."""

    models: tuple[ModelReady, ...]
    """What became of each model, in the order of the specification."""


class WorkerLoss(NamedTuple):
    """The end of a worker that was not told to end. It is reaped: its slots can be used again."""

    reason: str
    """How it ended, in words for the log."""

    epoch: int
    """Number of its start."""

    restarting: bool
    """Whether it is replaced; otherwise its models are closed until a trial succeeds."""

    killed: bool = False
    """Whether it was killed by SIGKILL, or stopped, from outside: by an operator, or a system without memory."""

    again_s: float = 0.0
    """Time until the next start, seconds, unless a spare takes over."""


class WorkerStartError(Exception):
    """A worker did not become ready. The message says why, as far as the worker could tell."""
