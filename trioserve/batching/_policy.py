"""Cut policies: pure functions of what is queued and what time it is.

Waiting on an idle executor for arrivals that may not come only adds latency, while waiting behind a busy one
is free. So the default policy is work-conserving: it dispatches what is ready as soon as the executor can take
it, and spends the window (at most 2 ms) on *announced* arrivals only: rows whose payload is still being
received or tokenized, and only while saving their fixed cost outweighs the delay of those that are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple, Protocol

from trioserve_protocol import CutReason

NEVER_NS: Final = 2**63 - 1
"""As in `trioserve.request`, which knows Trio: policies do not."""

TIMER_LATENESS_NS: Final = 50_000
"""Allowance for a timer that fires late; measured on a timerfd in the group's epoll set: 200 us fires at 264 us."""


class Service(Protocol):
    """What a policy asks of a service-time model, in rows; `ServiceModel` is one where a unit is a row."""

    @property
    def known(self) -> bool:
        """Whether anything can be predicted."""
        ...

    @property
    def k(self) -> float:
        """Mean deviations from the mean to the quantile."""
        ...

    def mean_ns(self, units: float) -> float:
        """Expected run time of a batch."""
        ...

    def deviation_ns(self, units: float) -> float:
        """Its mean absolute deviation."""
        ...

    def quantile_ns(self, units: float) -> float:
        """The run time that it hardly exceeds."""
        ...


class NoService:
    """Nothing is known."""

    known: Final = False
    k: Final = 0.0

    def mean_ns(self, units: float) -> float:
        """See `Service.mean_ns`."""
        del units
        return 0.0

    deviation_ns = quantile_ns = mean_ns


NO_SERVICE: Final = NoService()


def nothing_away(now_ns: int) -> list[tuple[int, float]]:
    """The returns of nobody."""
    del now_ns
    return []


def no_deadlines(rows: int) -> list[int]:
    """The deadlines of nobody."""
    del rows
    return []


class QueueView(NamedTuple):
    """What a policy may know about one model at a decision point. All instants are monotonic nanoseconds."""

    queued_rows: int
    """Rows ready to run, at least 1."""
    max_rows: int
    """Largest batch."""
    oldest_ready_ns: int
    """When the first queued row became ready."""
    head_deadline_ns: int
    """Earliest deadline among the rows of the next batch."""
    announced_rows: int
    """Rows admitted but still being received or tokenized."""
    announced_eta_ns: int
    """When the next of them is expected to be ready."""
    last_completion_ns: int
    """When the executor returned its last batch."""
    free_ns: int
    """When the executor is expected to be free; in the past if it is idle."""
    fixed_ns: float
    """Cost of a batch whatever its size."""
    per_row_ns: float
    """Cost of one row more."""
    service: Service = NO_SERVICE
    """Run times by rows."""
    full_rows: int = 0
    """Rows of a batch that is full enough; `max_rows` or less. 0: as many as that."""
    deadlines_ns: Callable[[int], Sequence[int]] = no_deadlines
    """Deadlines of the first so many rows, in service order."""
    etas: Callable[[int], list[tuple[int, float]]] = nothing_away
    """When, from now on, rows are expected that are not queued yet, soonest first, and how likely they come."""
    rate: float = 0.0
    """Rows a nanosecond that are offered, refused ones included."""
    shed_ns: int = -(2**62)
    """When a request was shed last."""
    sla_ns: int = 0
    """What a request usually has from its arrival to its deadline."""
    kg: float = 0.5
    """How much of the distance to the quantile a head's deadline must leave room for."""
    executors: int = 1
    """How many run this model."""
    busy: int = 0
    """How many of the others are running a batch of it."""
    last_start_ns: int = -(2**62)
    """When the last batch was started."""
    ample_ns: float = inf
    """With so much time left for the head, no batch is too large for it."""
    is_stale: bool = False
    """Whether nothing has been learnt of run times for a while, so that they may be wrong."""
    is_prompt: bool = False
    """Whether even a full batch runs for so short a time that a wait for a busy executor gains nothing."""

    def service_ns(self, rows: int) -> float:
        """Expected run time of a batch of `rows`."""
        return self.fixed_ns + self.per_row_ns * rows


class Dispatch(NamedTuple):
    """Cut a batch of the first `rows` rows now, after the first `drop` rows, which cannot be answered in time."""

    rows: int
    """0: drop, and ask again."""
    reason: CutReason
    drop: int = 0
    """Rows to expire first."""


class WaitUntil(NamedTuple):
    """Nothing now; ask again at `at_ns`, or when something happens before that."""

    at_ns: int


class Policy(Protocol):
    """Decides when a batch is cut. Called synchronously by whoever caused the event; must not block."""

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """The decision for one model whose executor can take a batch.

        Args:
            view: the queue, with at least one ready row.
            now_ns: the time of the event.
        """
        ...


class Learner(Protocol):
    """What a policy has, too, that wants to know what became of its batches."""

    def learn(self, rows: int, run_ns: int) -> None:
        """A batch has come back.

        Args:
            rows: its units: rows, or tokens.
            run_ns: how long it ran.
        """
        ...


class WorkConserving:
    """Dispatches as soon as the executor can run; waits only for arrivals that are on their way.

    Args:
        window_ns: the longest wait, counted from when the executor and the first row were both ready.
        lead_ns: how long before the executor is free the next batch is sent, to hide the hop to it.
    """

    def __init__(self, window_ns: int, lead_ns: int = 0) -> None:
        self.window_ns: Final = window_ns
        self.lead_ns: Final = lead_ns

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        rows = min(view.queued_rows, view.max_rows)
        if rows == view.max_rows:
            return Dispatch(rows, CutReason.FULL)
        behind_ns = view.free_ns - self.lead_ns
        if now_ns < behind_ns:
            return WaitUntil(behind_ns)
        if not view.announced_rows or not self.window_ns:
            return Dispatch(rows, CutReason.NO_GAIN)
        window_end_ns = max(view.oldest_ready_ns, view.last_completion_ns) + self.window_ns
        if now_ns >= window_end_ns:
            return Dispatch(rows, CutReason.WINDOW)
        slack_end_ns = view.head_deadline_ns - int(view.service_ns(rows + 1)) - TIMER_LATENESS_NS
        if now_ns >= slack_end_ns:
            return Dispatch(rows, CutReason.SLACK)
        wait_ns = max(0, view.announced_eta_ns - now_ns)
        if view.fixed_ns - rows * view.per_row_ns <= wait_ns:
            return Dispatch(rows, CutReason.NO_GAIN)
        return WaitUntil(min(window_end_ns, slack_end_ns, now_ns + wait_ns + TIMER_LATENESS_NS))


class FixedWindow:
    """Waits the whole window for a full batch, as most servers do: a baseline, and the policy of choice for nobody.

    Args:
        window_ns: how long the first ready row waits for others.
    """

    def __init__(self, window_ns: int) -> None:
        self.window_ns: Final = window_ns

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        rows = min(view.queued_rows, view.max_rows)
        if rows == view.max_rows:
            return Dispatch(rows, CutReason.FULL)
        if now_ns >= view.oldest_ready_ns + self.window_ns:
            return Dispatch(rows, CutReason.WINDOW)
        return WaitUntil(view.oldest_ready_ns + self.window_ns)
