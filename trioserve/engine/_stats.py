"""Counters of one model.

Their sum rule: received = ok + refused + expired + cancelled + failed + in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trioserve_protocol import CutReason, ErrorCode

if TYPE_CHECKING:
    from trioserve.execution import StageResult

    from ._batch import Batch


class LaneStats:
    """Running totals of one model since it was loaded. Plain integers, written by one thread."""

    __slots__ = (
        "batch_sizes",
        "batches",
        "batches_abandoned",
        "cancelled",
        "cuts",
        "errors",
        "expired",
        "failed",
        "ok",
        "padding",
        "queue_ns",
        "received",
        "refused",
        "rows",
        "rows_gathered",
        "run_ns",
    )

    def __init__(self, max_rows: int) -> None:
        self.received = self.ok = self.refused = self.expired = self.cancelled = self.failed = 0
        self.errors: dict[ErrorCode, int] = {}
        """What did not end by a result, by code: together as many as were refused, expired, cancelled or failed."""
        self.batches = self.rows = self.rows_gathered = self.padding = 0
        self.batches_abandoned = 0
        """Batches whose worker was told that nobody waited for them any more."""
        self.run_ns = self.queue_ns = 0
        self.cuts = [0] * len(CutReason)
        """Batches by the reason of their cut."""
        self.batch_sizes = [0] * (max_rows + 1)
        """Batches by their rows."""

    def count_error(self, code: ErrorCode, requests: int = 1) -> None:
        """Counts admitted requests that ended otherwise than by a result, by what ended them."""
        family = code.grpc
        if family == ErrorCode.CANCELLED:
            self.cancelled += requests
        elif family == ErrorCode.DEADLINE_EXCEEDED:
            self.expired += requests
        else:
            self.failed += requests
        self.errors[code] = self.errors.get(code, 0) + requests

    def count_refusal(self, code: ErrorCode, requests: int) -> None:
        """Counts requests that were not admitted."""
        self.refused += requests
        self.errors[code] = self.errors.get(code, 0) + requests

    def count_cut(self, rows: int, reason: CutReason) -> None:
        """Counts a batch as it is cut."""
        self.batches += 1
        self.rows += rows
        self.batch_sizes[rows] += 1
        self.cuts[reason] += 1

    def count_completion(self, batch: Batch, result: StageResult) -> None:
        """Counts a batch as it comes back."""
        self.run_ns += result.run_ns - result.input_ns
        self.queue_ns += batch.cut_ns - batch.lane.slots.ready_ns[batch.ranges[0][0]]
        self.rows_gathered += result.rows_gathered
        self.padding += result.padding

    def snapshot(self) -> dict[str, Any]:
        """The totals as JSON values."""
        return {
            "received": self.received,
            "ok": self.ok,
            "refused": self.refused,
            "expired": self.expired,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "errors": {code.name: count for code, count in sorted(self.errors.items())},
            "batches": self.batches,
            "batches_abandoned": self.batches_abandoned,
            "rows": self.rows,
            "rows_gathered": self.rows_gathered,
            "padding": self.padding,
            "compute_ns": self.run_ns,
            "queue_ns": self.queue_ns,
            "cut_reasons": {reason.name.lower(): self.cuts[reason] for reason in CutReason},
            "batch_sizes": {str(size): count for size, count in enumerate(self.batch_sizes) if count},
        }
