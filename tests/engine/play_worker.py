"""Workers that tests play: they do what the test says, when it says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import trio

from tests.engine.play_models import Array, outputs_of, text_outputs, tokens_in
from trioserve.engine import Executor, Lane, TextLane, Tokenizer
from trioserve.errors import WorkerLost
from trioserve.execution import StageBatch, StageResult
from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from trioserve.request import Clock

MS = 1_000_000


class FakeLink:
    """A `StageLink` whose worker does what the test says, when it says so."""

    def __init__(self, stage: FakeWorker, depth: int) -> None:
        self.depth = depth
        self.is_sound = True
        self.sent: deque[StageBatch] = deque()
        self.done: deque[StageResult] = deque()
        self.dead = False
        self.closed = False
        self.on_send: Callable[[], None] | None = None
        self.abandoned: list[int] = []
        self.killed_because = ""
        self._worker = stage

    def fileno(self) -> int:
        return self._worker.fd

    @property
    def in_flight(self) -> int:
        return len(self.sent) + len(self.done)

    def send_nowait(self, batch: StageBatch) -> None:
        assert not self.closed
        if self.dead:
            raise WorkerLost("the worker is gone")
        if self.in_flight >= self.depth:
            raise trio.WouldBlock
        assert batch.rows > 0
        self.sent.append(batch)
        if self.on_send is not None:
            self.on_send()

    def receive_nowait(self) -> StageResult | None:
        assert not self.closed
        if self.done:
            return self.done.popleft()
        if self.dead:
            raise WorkerLost("the worker is gone")
        return None

    def abandon(self, seq: int) -> None:
        assert not self.closed
        assert seq in [batch.seq for batch in self.sent], "an order for a batch that the worker does not have"
        self.abandoned.append(seq)

    def kill(self, why: str) -> None:
        self.killed_because = why
        self.dead = True

    def close(self) -> None:
        self.closed = True


class FakeWorker:
    """A worker process of one stage: what it was sent, and what it answers."""

    def __init__(
        self,
        stage: Executor | Tokenizer,
        clock: Clock,
        *,
        fd: int,
        depth: int,
        check: Callable[[Lane, StageBatch, Array], None],
    ) -> None:
        self.stage = stage
        self._clock = clock
        self._check = check
        self.fd = fd
        self.depth = depth
        self.run_ns = 2 * MS
        self.batches: list[StageBatch] = []
        """All that were ever finished."""
        self.skipped: set[int] = set()
        self.link: FakeLink
        self.start()

    def start(self) -> None:
        self.link = FakeLink(self, self.depth)
        self.stage.attach(self.link)

    @property
    def sent(self) -> deque[StageBatch]:
        return self.link.sent

    def ranges(self) -> list[list[tuple[int, int]]]:
        """The ranges of the batches that it has, oldest first."""
        return [list(batch.ranges) for batch in self.sent]

    def skip(self, seq: int) -> None:
        """Says that it will not begin a batch that was abandoned."""
        assert seq in self.link.abandoned
        assert seq in [batch.seq for batch in self.sent]
        self.skipped.add(seq)
        assert isinstance(self.stage, Executor)
        self.stage.skipped(seq)

    def die(self) -> None:
        """The process is gone; what it had finished can still be received."""
        self.link.dead = True

    def finish(
        self,
        *,
        code: int = 0,
        message: str = "",
        failures: Sequence[tuple[int, int, str]] = (),
        took_ns: int | None = None,
        collect: bool = True,
    ) -> None:
        """Completes the oldest batch."""
        batch = self.sent.popleft()
        if batch.seq in self.skipped:
            now_ns, cancelled = self._clock.now_ns(), int(ErrorCode.CANCELLED)
            self.link.done.append(
                StageResult(batch.model, batch.seq, cancelled, "", now_ns, now_ns, now_ns, now_ns, 0, 0)
            )
            self.stage.collect(now_ns)
            return
        self.batches.append(batch)
        lane = list(self.stage.number_of)[batch.model]
        slots = np.concatenate([np.arange(first, first + count) for first, count in batch.ranges])
        self._check(lane, batch, slots)
        lengths = None
        if isinstance(self.stage, Tokenizer):
            if not code:
                lengths = self._tokenize(lane, batch, slots)
        elif not code:
            self._execute(lane, slots)
        now_ns = self._clock.now_ns()
        started_ns = now_ns - (self.run_ns if took_ns is None else took_ns)
        self.link.done.append(
            StageResult(
                batch.model,
                batch.seq,
                code,
                message,
                started_ns,
                started_ns + 10,
                now_ns - 10,
                now_ns,
                0,
                0,
                tuple(failures),
                lengths,
            )
        )
        if collect:
            self.stage.collect(now_ns)

    def _execute(self, lane: Lane, slots: Array) -> None:
        slab = lane.slab
        if isinstance(lane, TextLane):
            results = text_outputs(slab.tokens[slots, 0])
        else:
            results = outputs_of(*(rows[slots] for rows in slab.inputs))
        for rows, values in zip(slab.outputs, results, strict=True):
            rows[slots] = values

    def _tokenize(self, lane: Lane, batch: StageBatch, slots: Array) -> Array:
        assert batch.offsets is not None
        assert batch.lengths is not None
        counts = []
        for slot, offset, nbytes in zip(slots, batch.offsets.tolist(), batch.lengths.tolist(), strict=True):
            text = bytes(lane.slab.text[offset : offset + nbytes])
            lane.slab.tokens[slot, 0] = crc32(text)
            counts.append(tokens_in(text))
        return np.array(counts, np.uint32)
