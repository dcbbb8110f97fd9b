"""The cut rules: work-conserving, with waits for near-certain arrivals, and aware of deadlines.

In the order in which they are asked: a batch that is full goes; one for which more is announced by refusals waits while
that makes it more efficient (FILL); one of several executors waits its turn (STAGGER); one that nobody is expected
for goes (NO_GAIN), as does one whose head has no time to spare (SLACK) or that has waited long enough (WINDOW).
Heads that cannot be answered in time are dropped before, and a batch that its head cannot wait out is made smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trioserve_protocol import CutReason

from ._policy import NEVER_NS, TIMER_LATENESS_NS, Dispatch, QueueView, Service, WaitUntil

BLIND_ROWS: Final = 4
"""Largest batch while nothing is known of run times."""

PROMPT_NS: Final = 1_000_000
"""Batches go at once to a worker that is busy for less than this, with batches that run for less than this: a timer's
lateness, and a worker that waits for its next batch, would cost more than late binding could gain until it is free."""

HURT: Final = 1.4
"""Of the cut margin: a following batch is given a little more."""

DROP_GAIN: Final = 1.02
"""Least gain in rows a second for which heads that could still be answered are given up."""

WAIT_GAIN: Final = 1.05
"""Least gain in rows a second for which a batch waits for demand that refusals show."""

TURNS: Final = 1.25
"""Executors take turns while the fixed cost is so many times that of a batch's rows. With 4, large batches of models
like 4 + 0.1 b do not, and 2 or 4 executors at a load of 0.9 are up to 10 % slower; with 1, models like 1 + 1 b take
turns by the noise of their measured costs, for nothing."""

SHORTEST_WAIT_NS: Final = 20_000
SHORTEST_FILL_NS: Final = 50_000


class Adaptive:
    """The default policy.

    Args:
        window_ns: the longest wait for more rows while the executor is idle.
        lead_ns: how long before the executor is free the next batch is sent, to hide the hop to it.
    """

    def __init__(self, window_ns: int = 2_000_000, lead_ns: int = 0) -> None:
        self.window_ns: Final = window_ns
        self.lead_ns: Final = lead_ns

    def decide(self, view: QueueView, now_ns: int) -> Dispatch | WaitUntil:
        """See `Policy.decide`."""
        service = view.service
        queued = view.queued_rows
        full = view.full_rows or view.max_rows
        if view.free_ns and not (view.is_prompt and view.free_ns - now_ns < PROMPT_NS and service.known):
            # It costs nothing to stay open, and clients of the batch that runs may be back for the next one.
            if queued < full and service.known:
                return WaitUntil(NEVER_NS)
            if view.free_ns > now_ns + self.lead_ns:
                return WaitUntil(view.free_ns - self.lead_ns)
        start_ns = max(now_ns, view.free_ns)
        if not service.known:
            return Dispatch(min(queued, view.max_rows, BLIND_ROWS), CutReason.NO_GAIN)
        rows = min(full, queued)
        slack_ns = view.head_deadline_ns - start_ns
        if slack_ns < view.ample_ns and slack_ns < service.mean_ns(
            rows
        ) + view.kg * service.k * service.deviation_ns(rows):
            dropped, rows = _fit(view, full, start_ns)
            if dropped or rows < min(full, queued):
                return Dispatch(rows, CutReason.FULL if rows == full else CutReason.SLACK, dropped)
        if rows == full:
            return Dispatch(rows, CutReason.FULL)
        return self._wait(view, rows, full, now_ns)

    def _wait(self, view: QueueView, rows: int, full: int, now_ns: int) -> Dispatch | WaitUntil:
        """Whether a batch that is not full is worth a wait."""
        if view.sla_ns and now_ns - view.shed_ns < view.sla_ns:
            wait_ns = _fill_ns(view, rows, full, now_ns)
            if wait_ns:
                return WaitUntil(now_ns + wait_ns)
        window_end_ns = max(view.oldest_ready_ns, view.last_completion_ns) + self.window_ns
        if view.executors > 1:
            turn_ns = _turn(view, rows, window_end_ns, self.window_ns)
            until_ns = min(turn_ns, window_end_ns, _slack_end(view, rows))
            if until_ns > now_ns:
                return WaitUntil(until_ns)
        if not self.window_ns or view.fixed_ns <= rows * view.per_row_ns:
            return Dispatch(
                rows, CutReason.NO_GAIN
            )  # even one who comes this instant would save less than it costs
        etas = view.etas(now_ns)
        if not etas:
            return Dispatch(rows, CutReason.NO_GAIN)
        slack_end_ns = _slack_end(view, rows)
        if slack_end_ns <= now_ns:
            return Dispatch(rows, CutReason.SLACK)
        if window_end_ns <= now_ns:
            return Dispatch(rows, CutReason.WINDOW)
        wait_ns = _worth(view, rows, full, etas, window_end_ns, now_ns)
        if wait_ns < 0:
            return Dispatch(rows, CutReason.NO_GAIN)
        at_ns = now_ns + max(wait_ns, SHORTEST_WAIT_NS) + SHORTEST_WAIT_NS
        return WaitUntil(min(window_end_ns, slack_end_ns, at_ns))


def _slack_end(view: QueueView, rows: int) -> int:
    """When the head's deadline ends any wait."""
    return view.head_deadline_ns - int(view.service.quantile_ns(rows + 1)) - TIMER_LATENESS_NS


def _turn(view: QueueView, rows: int, window_end_ns: int, window_ns: int) -> int:
    """When one of several executors should start, so that their batches follow each other at equal distances.

    Executors that start together take small batches together; in turns each finds what has come in between. Only where
    the fixed cost rules, enough comes, and the window reaches that far or nearly: part of the way is for nothing.
    Otherwise at once.
    """
    service = view.service
    if (
        not view.busy
        or view.rate * service.mean_ns(1) <= 0.5
        or view.fixed_ns <= TURNS * rows * view.per_row_ns
    ):
        return 0
    turn_ns = view.last_start_ns + int(service.mean_ns(rows) / view.executors)
    return turn_ns if turn_ns <= window_end_ns + window_ns // 2 else 0


def _worth(
    view: QueueView, rows: int, full: int, etas: list[tuple[int, float]], window_end_ns: int, now_ns: int
) -> int:
    """How long to wait for some of those that are expected; -1 if nobody is worth it.

    One batch less saves its fixed cost to whoever comes, at the price of one row more for those that wait; the wait
    itself delays all that are here and all that come while the batch runs.
    """
    service, fixed_ns, per_row_ns = view.service, view.fixed_ns, view.per_row_ns
    delayed = rows + max(0.0, view.rate * service.mean_ns(rows) - len(etas))
    head_ns = view.head_deadline_ns - TIMER_LATENESS_NS
    likely = best = 0.0
    wait_ns = -1
    for more, (eta_ns, chance) in enumerate(etas[: full - rows], 1):
        likely += chance
        tau_ns = max(0, eta_ns - now_ns)
        if now_ns + tau_ns > window_end_ns or now_ns + tau_ns + service.quantile_ns(rows + more) > head_ns:
            break
        gain = likely * (fixed_ns - rows * per_row_ns - tau_ns) - delayed * tau_ns
        if gain > best:
            best, wait_ns = gain, tau_ns
    return wait_ns


def _fill_ns(view: QueueView, rows: int, full: int, now_ns: int) -> int:
    """How long to wait for what is offered anyway, 0 if that gains nothing.

    What was shed shows that there is more demand than can be served: then a batch should be as efficient as its head's
    deadline allows.
    """
    rate = view.rate
    if rate <= 0:
        return 0
    service = view.service
    margin = view.kg * service.k
    best = rows / max(1.0, service.mean_ns(rows))
    slack_ns = view.head_deadline_ns - now_ns - TIMER_LATENESS_NS
    wait_ns = 0.0
    for more in range(1, full - rows + 1):
        tau_ns = more / rate
        mean_ns = service.mean_ns(rows + more)
        if mean_ns + margin * service.deviation_ns(rows + more) + tau_ns > slack_ns:
            break
        efficiency = (rows + more) / (tau_ns + mean_ns)
        if efficiency > WAIT_GAIN * best:
            best, wait_ns = efficiency, tau_ns
    return int(min(wait_ns, max(SHORTEST_FILL_NS, 1 / rate))) if wait_ns else 0


def _fit(view: QueueView, full: int, start_ns: int) -> tuple[int, int]:
    """What to do with a head whose deadline presses: how many rows to drop, and how many to run then.

    Heads are dropped that would be late even alone, by the mean and not by a quantile: with the quantile a tight
    deadline would make every batch tiny. Then the batch is made as small as its head needs, unless that costs those
    behind it more than giving some heads up.
    """
    service, margin = view.service, view.kg * view.service.k
    heads = _Heads(view, 2 * full)
    deadlines_ns = heads.deadlines_ns
    alone_ns = start_ns + service.mean_ns(1)
    dropped = 0
    while heads.upto(dropped + 1) > dropped and heads.deadlines_ns[dropped] < alone_ns:
        dropped += 1
    if dropped == view.queued_rows and view.is_stale and not view.free_ns:
        return _probe(dropped)
    if dropped:
        return dropped, 0  # to be asked again without them
    queued = len(deadlines_ns)
    wanted = min(full, queued)
    # One of a lesser class may be lost already without being first; nobody makes a batch smaller for it.
    head_ns = (
        min([deadline_ns for deadline_ns in deadlines_ns[:wanted] if deadline_ns >= alone_ns]) - start_ns
    )
    rows = wanted
    while rows > 1 and service.mean_ns(rows) + margin * service.deviation_ns(rows) > head_ns:
        rows -= 1
    if rows == wanted:
        return 0, rows
    behind = min(full, queued - rows)
    following_ns = start_ns + service.mean_ns(rows) + service.mean_ns(behind)
    following_ns += HURT * margin * service.deviation_ns(behind)
    # The first may be one of a better class that has time: it is not given up for one behind it.
    if deadlines_ns[rows] < following_ns and deadlines_ns[0] - start_ns < service.mean_ns(wanted):
        first, better = _give_up(service, heads, full, start_ns)
        if better / max(1.0, service.mean_ns(better)) > DROP_GAIN * rows / max(1.0, service.mean_ns(rows)):
            return first, better
    return 0, rows


def _probe(hopeless: int) -> tuple[int, int]:
    """The last of those that are believed to be late: it shows whether they are, where nothing else will."""
    return (hopeless - 1, 0) if hopeless > 1 else (0, 1)


def _give_up(service: Service, heads: _Heads, full: int, start_ns: int) -> tuple[int, int]:
    """The first row from which on a whole batch is in time: rows before it, and rows of that batch."""
    first = 1
    while True:
        rows = heads.upto(first + full) - first
        if rows <= 0:
            return first, 0
        if heads.deadlines_ns[first] - start_ns >= service.mean_ns(rows):
            return first, rows
        first += 1


class _Heads:
    """Deadlines in service order, as many as are looked at: of a long queue hardly ever more than two batches.

    Args:
        view: of the queue.
        rows: how many are wanted in any case.
    """

    def __init__(self, view: QueueView, rows: int) -> None:
        self._view: Final = view
        self._asked = 0
        self.deadlines_ns: Sequence[int] = ()
        self.upto(rows)

    def upto(self, rows: int) -> int:
        """Sees to it that so many are there, or all; returns how many of them are."""
        if rows > self._asked and self._asked < self._view.queued_rows:
            self._asked = min(max(rows, 2 * self._asked), self._view.queued_rows)
            self.deadlines_ns = self._view.deadlines_ns(self._asked)
        return min(rows, len(self.deadlines_ns))
