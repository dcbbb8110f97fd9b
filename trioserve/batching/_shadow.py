"""What other policies would have made of the traffic that is being served.

A shadow is told what is offered, and plays a server of its own in arithmetic: one queue in the order of arrival, one
executor that runs as long as the service-time model expects, and a policy. So the statistics of a live server can say
that a fixed window of 2 ms would have had a p99 of 14 ms where it had 10. It costs some microseconds a request, so it
is for those who ask for it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trioserve.request import NEVER_NS

from ._policy import Dispatch, Policy, QueueView, Service

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_WAITING_BATCHES: Final = 64
"""Full batches that wait in a shadow at most: rivals without admission would queue for ever, and so would it."""

FINE: Final = 4
"""Latencies are counted in 2**FINE classes an octave: a percentile is right within 6 %."""


class Latencies:
    """Counts of latencies, by classes that are equally wide on a logarithmic scale."""

    __slots__ = ("_counts", "answers", "total_ns")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.answers = 0
        self.total_ns = 0

    def add(self, latency_ns: int, answers: int = 1) -> None:
        """Counts answers that took so long."""
        exponent = max(0, latency_ns.bit_length() - FINE - 1)
        group = (exponent << FINE) + (latency_ns >> exponent)
        self._counts[group] = self._counts.get(group, 0) + answers
        self.answers += answers
        self.total_ns += latency_ns * answers

    def percentile_ns(self, percent: float) -> int:
        """The latency that so many per cent do not exceed, rounded up to its class; 0 if nothing was counted."""
        left = percent / 100 * self.answers
        for group in sorted(self._counts):
            left -= self._counts[group]
            if left <= 1e-9:
                exponent = max(0, (group >> FINE) - 1)
                return ((group - (exponent << FINE)) + 1 << exponent) - 1
        return 0

    def snapshot(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "answers": self.answers,
            "mean_us": self.total_ns / self.answers / 1e3 if self.answers else 0.0,
            "p50_us": self.percentile_ns(50) / 1e3,
            "p99_us": self.percentile_ns(99) / 1e3,
        }


class Shadow:
    """One policy's server.

    Args:
        name: what it is called in statistics.
        policy: decides its cuts.
        service: how long batches run, in rows, as the server learns it.
        max_rows: its largest batch.
        sla_ns: the default deadline.
    """

    def __init__(self, name: str, policy: Policy, service: Service, max_rows: int, sla_ns: int) -> None:
        self.name: Final = name
        self._policy: Final = policy
        self._service: Final = service
        self._sla_ns: Final = sla_ns
        self._learn: Final = getattr(policy, "learn", None)
        self._max_rows: Final = max_rows
        self._runs: deque[list[int]] = deque()
        """Rows that wait, in the order of arrival: when they came, how long each may take, how many."""
        self._rows = 0
        self._deadline_ns = NEVER_NS
        """None of them has an earlier one."""
        self._free_ns = 0
        self._wake_ns = NEVER_NS
        self.latencies: Final = Latencies()
        self.late = 0
        """Requests that were answered after their deadline."""
        self.dropped = 0
        """Requests that were given up, or whose deadline was over before they could run."""
        self.refused = 0
        """Requests that found as many waiting as may."""
        self.batches = 0

    def offered(self, now_ns: int, count: int, timeouts_ns: int | NDArray[np.int64]) -> None:
        """Takes a run of requests that came together.

        Args:
            now_ns: when.
            count: how many.
            timeouts_ns: how long each may take, or one for all.
        """
        self.advance(now_ns)
        self._drop_heads(now_ns)
        room = MAX_WAITING_BATCHES * self._max_rows - self._rows
        self.refused += max(0, count - room)
        count = min(count, room)
        if isinstance(timeouts_ns, np.ndarray):
            for timeout_ns in timeouts_ns[:count].tolist():
                self._push(now_ns, timeout_ns, 1)
        elif count:
            self._push(now_ns, timeouts_ns, count)
        self._decide(now_ns)

    def _push(self, now_ns: int, timeout_ns: int, count: int) -> None:
        self._runs.append([now_ns, timeout_ns, count])
        self._deadline_ns = min(self._deadline_ns, now_ns + timeout_ns)
        self._rows += count

    def advance(self, now_ns: int) -> None:
        """Lets everything happen that is due."""
        while self._wake_ns <= now_ns:
            self._decide(self._wake_ns)

    def _decide(self, now_ns: int) -> None:
        if self._rows and now_ns < self._free_ns:
            self._wake_ns = self._free_ns
            return
        self._drop_heads(now_ns)
        if self._deadline_ns <= now_ns:
            self._drop_any(now_ns)
        if not self._rows:
            self._wake_ns = NEVER_NS
            return
        decision = self._policy.decide(self._view(), now_ns)
        if isinstance(decision, Dispatch):
            self.dropped += decision.drop
            self._take(decision.drop, 0)
            if decision.rows and self._rows:
                self._run(min(decision.rows, self._rows), now_ns)
            else:
                self._wake_ns = now_ns + 1 if self._rows else NEVER_NS
        else:
            self._wake_ns = max(decision.at_ns, now_ns + 1)

    def _view(self) -> QueueView:
        fixed_ns = self._service.mean_ns(1)
        per_row_ns = (self._service.mean_ns(self._max_rows) - fixed_ns) / max(1, self._max_rows - 1)
        oldest_ns, timeout_ns, _ = self._runs[0]
        return QueueView(
            queued_rows=self._rows,
            max_rows=self._max_rows,
            oldest_ready_ns=oldest_ns,
            head_deadline_ns=oldest_ns + timeout_ns,
            announced_rows=0,
            announced_eta_ns=NEVER_NS,
            last_completion_ns=self._free_ns,
            free_ns=0,
            fixed_ns=max(0.0, fixed_ns - per_row_ns),
            per_row_ns=per_row_ns,
            service=self._service,
            deadlines_ns=self._deadlines,
            sla_ns=self._sla_ns,
        )

    def _deadlines(self, rows: int) -> list[int]:
        """Deadlines of the first so many rows."""
        found: list[int] = []
        for at_ns, timeout_ns, count in self._runs:
            found += [at_ns + timeout_ns] * min(count, rows - len(found))
            if len(found) == rows:
                break
        return found

    def _drop_heads(self, now_ns: int) -> None:
        """Drops those in front whose deadline is over: all of them, if all have the same time."""
        runs = self._runs
        while runs and runs[0][0] + runs[0][1] <= now_ns:
            self.dropped += runs[0][2]
            self._rows -= runs.popleft()[2]

    def _drop_any(self, now_ns: int) -> None:
        """Drops all whose deadline is over, as the server does before it cuts, whatever its policy."""
        live = [run for run in self._runs if run[0] + run[1] > now_ns]
        rows = sum([run[2] for run in live])
        self.dropped += self._rows - rows
        self._runs, self._rows = deque(live), rows
        self._deadline_ns = min([run[0] + run[1] for run in live], default=NEVER_NS)

    def _run(self, rows: int, now_ns: int) -> None:
        """Runs a batch; its answers are counted at once, since nothing can change them any more."""
        took_ns = max(1, int(self._service.mean_ns(rows)))
        finished_ns = now_ns + took_ns
        if self._learn is not None:
            self._learn(rows, took_ns)
        self._free_ns = finished_ns
        self.batches += 1
        self._take(rows, finished_ns)
        self._wake_ns = finished_ns if self._rows else NEVER_NS

    def _take(self, rows: int, finished_ns: int) -> None:
        """Takes rows off the queue, answered at some time; 0 if they are not."""
        self._rows -= rows
        while rows:
            run = self._runs[0]
            took = min(rows, run[2])
            if finished_ns:
                latency_ns = finished_ns - run[0]
                self.latencies.add(latency_ns, took)
                self.late += took * (latency_ns >= run[1])
            rows -= took
            run[2] -= took
            if not run[2]:
                self._runs.popleft()

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """What it has come to, as JSON values."""
        self.advance(now_ns)
        return {
            "policy": self.name,
            **self.latencies.snapshot(),
            "in_time": self.latencies.answers - self.late,
            "late": self.late,
            "dropped": self.dropped,
            "refused": self.refused,
            "batches": self.batches,
        }
