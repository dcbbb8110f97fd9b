"""Running batches of one model in a worker.

Lay the rows out, call the backend, check and place what it returns, and find the row at fault when it raises.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from trioserve.backends import OutputError, check_outputs
from trioserve.execution._costs import Costs
from trioserve.execution._descriptors import StageBatch, StageResult
from trioserve.execution._orders import Interruptible, abandoned
from trioserve.execution._report import report
from trioserve.execution._rows import InPlace, Outputs, Staging, TokenRows, read_only
from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from trioserve.backends import Arrays, Backend
    from trioserve.config import ModelConfig
    from trioserve.execution._rows import BatchInputs
    from trioserve.memory import Slab

BISECT_LIMIT_NS: Final = 2_000_000_000
"""Longest that a failed batch is taken apart. Rows not settled by then all get its error: other batches wait
behind it."""

BISECT_RUNS: Final = 4
"""That may also not take longer than half of the least that the watchdog waits, or than the batch took so many times:
then the watchdog, which allows ten times, does not take it for hung."""

_UNKNOWN_COSTS: Final = Costs(call_ns=float("inf"), copy_ns_per_byte=0.0)

Failure = tuple[int, int, str]


class Runner(Interruptible, Protocol):
    """What a worker runs the batches of one model with."""

    def run(self, batch: StageBatch) -> StageResult:
        """Run a batch. Never raises for what a model does."""

    def close(self) -> None:
        """Let go of what the model holds. Nothing is called afterwards."""


class _Piece(NamedTuple):
    """Rows that are run by one call: positions 0 .. rows of it stand at `position` of the batch."""

    position: int
    rows: int
    inputs: BatchInputs
    outputs: Outputs


class ModelRunner:
    """Runs batches of one loaded model over its slab. Used from one thread."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        slab: Slab,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Preallocate what batches need.

        Args:
            config: Of the model.
            backend: Loaded.
            slab: Where its rows stand.
            clock: CLOCK_MONOTONIC in nanoseconds.
        """
        self.costs = _UNKNOWN_COSTS
        self.staging = Staging(slab, config.batching.max_rows)
        self._name = config.name
        self._watchdog_ns = int(config.watchdog_s * 1e9)
        self._layout = config.batching.layout
        self._backend = backend
        self._clock = clock
        self._inputs: Arrays = tuple(read_only(array) for array in slab.inputs)
        self._outputs: Arrays = slab.outputs
        self._tokens = read_only(slab.tokens) if config.tokenizer is not None else None
        self._output_names = tuple(region.name for region in slab.layout.outputs)
        self._row_nbytes = sum(r.row_nbytes for r in (*slab.layout.inputs, *slab.layout.outputs))
        self._input_ns = 0
        self._run_ns = 0
        self._padding = 0
        self._interrupted = False

    def run(self, batch: StageBatch) -> StageResult:
        """See `Runner`.

        A batch of one range is used in place. Several are copied together or run one by one, whichever the measured
        costs say is cheaper.
        """
        started_ns = self._clock()
        self._input_ns = self._run_ns = self._padding = 0
        pieces, gathered = self._pieces(batch)
        failures: list[Failure] = []
        for piece in pieces:
            try:
                self._attempt(piece, 0, piece.rows)
            except BaseException as error:  # noqa: ASYNC103, BLE001  user code: its rows fail, the worker does not
                failures += self._isolate(piece, error)
            if self._interrupted:
                return abandoned(batch, started_ns)
        finished_ns = self._clock()
        return StageResult(
            batch.model, batch.seq, 0, "", started_ns, self._input_ns, self._run_ns or finished_ns, finished_ns,
            self._padding, gathered, tuple(failures),
        )  # fmt: skip

    def interrupt(self) -> None:
        """See `Runner`."""
        self._interrupted = True
        self._backend.interrupt()

    def resume(self) -> None:
        """See `Runner`."""
        self._interrupted = False
        self._backend.resume()

    def close(self) -> None:
        """See `Runner`."""
        try:
            self._backend.close()
        except Exception as error:  # noqa: BLE001  user code, and nothing can come of it any more
            report(f"model {self._name!r} raised when it was closed", error)

    def _pieces(self, batch: StageBatch) -> tuple[list[_Piece], int]:
        """How to run the batch, and how many rows were copied for it."""
        ranges, staging = batch.ranges, self.staging
        outputs = Outputs(self._outputs, ranges, staging.outputs)
        if self._tokens is not None:
            rows = batch.rows
            gathered = rows if len(ranges) > 1 else 0
            return [_Piece(0, rows, TokenRows(self._tokens, batch, self._layout), outputs)], gathered
        if len(ranges) == 1:
            first, count = ranges[0]
            return [_Piece(0, count, InPlace(self._inputs, first), outputs)], 0
        rows = batch.rows
        if self.costs.prefers_gather(len(ranges), rows * self._row_nbytes):
            staging.gather(self._inputs, ranges)
            return [_Piece(0, rows, InPlace(staging.inputs, 0), outputs)], rows
        pieces, position = [], 0
        for first, count in ranges:
            alone = Outputs(self._outputs, ((first, count),), staging.outputs)
            pieces.append(_Piece(position, count, InPlace(self._inputs, first), alone))
            position += count
        return pieces, 0

    def _attempt(self, piece: _Piece, start: int, stop: int) -> None:
        """Run positions `[start, stop)` of a piece.

        Raises:
            Exception: The model raised, or returned something else than its signature says.
        """
        inputs = piece.inputs.inputs(start, stop)
        places = piece.outputs.places(start, stop)
        self._padding += piece.inputs.padding(start, stop)
        # Of the first call: what is laid out for later ones of the same batch counts as run.
        self._input_ns = self._input_ns or self._clock()
        results = self._backend.infer(inputs, places)
        self._run_ns = self._clock()
        check_outputs(self._output_names, results, places)
        piece.outputs.store(start, stop, results, places)

    def _isolate(self, piece: _Piece, error: BaseException) -> list[Failure]:
        """A piece failed: find its rows at fault."""
        if self._interrupted:
            return []
        # The whole story goes to the log; what a client is told is the kind of error and no more.
        report(f"model {self._name!r} raised on a batch of {piece.rows} rows", error)
        now_ns = self._clock()
        longest_ns = max(self._watchdog_ns // 2, BISECT_RUNS * (now_ns - self._input_ns))
        return self._bisect(piece, 0, piece.rows, error, now_ns + min(BISECT_LIMIT_NS, longest_ns))

    def _bisect(
        self, piece: _Piece, start: int, stop: int, error: BaseException, limit_ns: int
    ) -> list[Failure]:
        """Run a part that failed again in halves, until the rows at fault stand alone.

        It ends early when the time is over, and when nobody waits for the batch any more: the deadline of its last row
        is the end of the slack, and the server says so by an interruption.

        Returns:
            One failure a row that fails by itself, ascending.
        """
        if stop - start == 1 or self._interrupted or self._clock() >= limit_ns:
            message = f"model {self._name!r} raised {type(error).__name__}"
            if isinstance(error, OutputError):
                message = f"model {self._name!r}: {error}"
            rows = range(piece.position + start, piece.position + stop)
            return [(row, int(ErrorCode.MODEL_RAISED), message) for row in rows]
        failures: list[Failure] = []
        middle = (start + stop) // 2
        for low, high in ((start, middle), (middle, stop)):
            try:
                self._attempt(piece, low, high)
            except BaseException as half_error:  # noqa: ASYNC103, BLE001  as in `run`
                failures += self._bisect(piece, low, high, half_error, limit_ns)
        return failures
