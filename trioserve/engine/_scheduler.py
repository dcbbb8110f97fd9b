"""One model's scheduler: what is admitted, what is cut when, and what both learn from what became of it.

It composes the rule of the admission and the policy of the batching, which do not know each other, with the state that
both need: what is reserved, when the executors are expected to be free, and what is offered. Pure: no clock, no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, cast

from trioserve.admission import Rule, Situation, Standing
from trioserve.batching import (
    PROMPT_NS,
    Bursts,
    DeadlineBands,
    Dispatch,
    Learner,
    Margins,
    Policy,
    QueueView,
    Returns,
    ServiceModel,
    WaitUntil,
)
from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode

from ._lessons import Lessons
from ._occupancy import LONG_AGO_NS, Cut, Occupancy, ServiceByRows
from ._plain import plain_decision
from ._waiting import Columns, Queue

RATE_MEMORY_NS: Final = 10_000_000
NO_OTHERS: Final = Standing()
OVERDUE_NS: Final = 200_000
"""How long after its time an announced request is still waited for."""


class Scheduler:
    """The scheduler of one model.

    Args:
        queue: what is ready to run; the caller enters and takes rows.
        columns: of the slots.
        policy: when to cut.
        service: how long batches run.
        max_rows: largest batch.
        sla_ns: the default deadline.
        random: draws from [0, 1).
        occupancy: of its executors.
    """

    upstream_ns: Callable[[int], int] | None = None
    """How long a stage before the executors takes for what waits for it and goes before a key."""

    def __init__(
        self,
        queue: Queue,
        columns: Columns,
        policy: Policy,
        service: ServiceModel,
        *,
        max_rows: int,
        sla_ns: int,
        random: Callable[[], float],
        occupancy: Occupancy | None = None,
    ) -> None:
        self.queue: Final = queue
        self.columns: Final = columns
        self.use(policy)
        self.service = service
        self.max_rows: Final = max_rows
        self.sla_ns: Final = sla_ns
        self.occupancy = occupancy or Occupancy()
        self.units_per_row = 1.0
        """Units of service time in a typical row: 1 unless rows differ in length."""
        self.margins: Final = Margins()
        self.returns: Final = Returns()
        self.bursts: Final = Bursts()
        self.offered: Final = DeadlineBands(RATE_MEMORY_NS)
        self.rule: Final = Rule(
            service,
            executors=len(self.occupancy.free_ns),
            max_units=max_rows,
            sla_ns=sla_ns,
            random=random,
        )
        self.full_rows = max_rows
        self.reserved = 0.0
        """Units admitted and not ended."""
        self.announced = 0.0
        """Of these, the units that are still being received or tokenized."""
        self.announced_etas: Callable[[], Sequence[int]] = tuple
        """When they are expected."""
        self.head_ns = NEVER_NS
        """The earliest deadline among the rows of the batch that was decided on last."""
        self.shed_ns = LONG_AGO_NS
        self.last_completion_ns = 0
        self.excess_ns, self.shed_units = 0.0, 1.0
        """Of the request that was shed last: by how much it would have been late, and its units."""
        self._dropped = 0
        self._tense_ns = LONG_AGO_NS
        self._overruled_ns = LONG_AGO_NS
        """When one was asked about last that may break promises to lesser classes: broken ones teach nothing then."""
        self._lessons: Final = Lessons()
        self._by_rows: Final = ServiceByRows(service)
        self.refresh()

    def use(self, policy: Policy) -> None:
        """Cuts by another policy from now on."""
        self.policy = policy
        self._learner = cast("Learner", policy) if hasattr(policy, "learn") else None

    def refresh(self) -> None:
        """Takes over what the service-time model says now."""
        service = self.service
        max_units = max(1, round(self.max_rows * self.units_per_row))
        full_units = service.full_batch(max_units, self.sla_ns) if service.known else max_units
        self.full_rows = min(self.max_rows, max(1, round(full_units / self.units_per_row)))
        self.rule.refresh(service, full_units, self.margins.z, max_units)
        self._by_rows.model = service
        self._by_rows.units_per_row = self.units_per_row
        self.unit_ns = self.rule.full_ns / self.rule.full_units
        """Executor time of one unit in a full batch."""
        deviation_ns = max(service.deviation_ns(1), self.rule.full_deviation_ns)
        self.ample_ns = 2 * (self.rule.full_ns + self.margins.kg * service.k * deviation_ns)
        self._fixed_ns = service.alpha_ns
        self._per_row_ns = service.beta_ns * self.units_per_row
        # Turns of a busy server are a part of a batch's way, but not of what it costs the executor.
        self.is_prompt = self.rule.full_ns - service.way_ns < PROMPT_NS
        self.returns.tune(service.alpha_ns - service.way_ns)

    # ---------------------------------------------------------------- admission

    def admit(
        self,
        count: int,
        units_each: float,
        deadline_ns: int,
        now_ns: int,
        *,
        key_ns: int = 0,
        eta_ns: int = 0,
        standing: Standing = NO_OTHERS,
        others_ns: float = 0.0,
        spare_ns: float = inf,
    ) -> tuple[int, ErrorCode]:
        """Reserves what the front of a run needs, as far as all promises can be kept.

        Args:
            count: requests of the run, which have one deadline.
            units_each: units of each.
            deadline_ns: their deadline.
            now_ns: the time of the event.
            key_ns: their place in the service order; the deadline if 0.
            eta_ns: time until the payload is complete; 0 if it is.
            standing: to other classes and tenants.
            others_ns: what is queued for other models of the executor and comes first.
            spare_ns: by how much what is queued for them and comes later may be put off.

        Returns:
            How many were admitted, and what the others are refused with (OK if none is).
        """
        distance_ns = deadline_ns - now_ns
        units = count * units_each
        self.offered.count(units, distance_ns)
        reserved = self.reserved + units
        key_ns = key_ns or deadline_ns
        ready_ns = eta_ns + (0 if self.upstream_ns is None else self.upstream_ns(key_ns))
        is_plain = not (standing.left_share or others_ns or self.occupancy.is_away) and spare_ns == inf
        if is_plain and self.rule.is_calm(reserved, deadline_ns, now_ns + ready_ns):
            self.reserved = reserved
            return count, ErrorCode.OK
        if not self.service.known:
            self.reserved = reserved
            return count, ErrorCode.OK
        situation = self._situation(key_ns, distance_ns, ready_ns, now_ns, standing)
        if standing.overtaking:
            situation = situation.beside(standing.overtaking, self.rule.capacity, now_ns)
        if others_ns or spare_ns < inf:
            situation = situation.behind(others_ns, now_ns)._replace(spare_ns=spare_ns)
        verdict = self.rule.admit(count, units_each, deadline_ns, now_ns, situation)
        if verdict.is_near:
            self._tense_ns = now_ns
        admitted = verdict.admitted
        if not admitted and ready_ns < distance_ns and not others_ns and spare_ns == inf:
            admitted = int(situation.is_empty and self._lessons.wants_probe(now_ns))
        self.reserved += admitted * units_each
        if standing.overrules and situation.deadlines_ns:
            self._overruled_ns = now_ns
        if admitted == count:
            return count, ErrorCode.OK
        if distance_ns < eta_ns + self.service.mean_ns(units_each):
            return admitted, ErrorCode.DEADLINE_INFEASIBLE
        self.shed_ns, self.excess_ns, self.shed_units = now_ns, verdict.excess_ns, units_each
        return admitted, ErrorCode.SHED

    def shed_again(self, units: float, distance_ns: int) -> None:
        """So many units, with so much time each, were shed as others had been a moment before."""
        self.offered.count(units, distance_ns)
        self._tense_ns = max(self._tense_ns, self.shed_ns)

    def _situation(
        self, key_ns: int, distance_ns: int, eta_ns: int, now_ns: int, standing: Standing = NO_OTHERS
    ) -> Situation:
        queue, scale = self.queue, self.units_per_row
        ahead = queue.ahead(key_ns)
        lesser_ns = standing.lesser_ns
        rate, shorter = self.offered.rates(distance_ns, now_ns)
        occupancy = self.occupancy
        occupancy.look(now_ns)
        free_ns = occupancy.free_ns
        return Situation(
            ahead * scale + self.announced,
            queue.rows * scale + self.announced,
            self.reserved,
            free_ns if len(free_ns) == 1 else sorted(free_ns),
            occupancy.idle,
            rate,
            self.rule.rho_of(shorter),
            eta_ns,
            0.0,
            standing.left_share,
            None if ahead == queue.rows else lambda first, step: queue.every(ahead + first, step, lesser_ns),
            scale,
        )

    def spare_ns(self, key_ns: int, others_ns: float, now_ns: int) -> float:
        """By how much what is queued and comes after a key may be put off by other models; infinite if nothing is.

        Args:
            key_ns: a place in the service order.
            others_ns: what is queued for other models and comes first.
            now_ns: the time of the event.
        """
        if self.queue.ahead(key_ns) == self.queue.rows:
            return inf
        situation = self._situation(key_ns, key_ns - now_ns, 0, now_ns)
        return self.rule.spare_ns(now_ns, situation.behind(others_ns, now_ns))

    def retry_after_us(self, now_ns: int, requests: int = 1) -> int:
        """When the request that was shed last should come again, or many like it together, microseconds from now."""
        return self.rule.retry_after_us(self.excess_ns, now_ns, requests * self.shed_units)

    def back_after_us(self, now_ns: int, requests: int = 1) -> int:
        """When requests whose worker is gone should come again: when there is another one, not all at once."""
        spread_us = self.rule.retry_after_us(0.0, now_ns, requests * self.units_per_row)
        return self.occupancy.away_ns(now_ns) // 1_000 + spread_us

    @property
    def row_ns(self) -> float:
        """Executor time of one row in a full batch."""
        return self.unit_ns * self.units_per_row

    def ahead_ns(self, rows: int) -> float:
        """How long the batches run that the first so many rows of the queue are in."""
        scale = self.units_per_row
        return self.rule.run_ns(rows * scale, self.queue.rows * scale)

    # ---------------------------------------------------------------- the cut

    def view(self, executor: int, now_ns: int) -> QueueView:
        """What the policy may know; the queue must not be empty."""
        queue, occupancy = self.queue, self.occupancy
        max_rows, full_rows, scale = self.max_rows, self.full_rows, self.units_per_row
        rows, is_full = queue.outlook(max_rows)
        queued_rows = queue.rows if is_full else rows
        if is_full and rows < full_rows:  # by its tokens
            full_rows = rows
        first_rows = min(rows, full_rows)
        executors = len(occupancy.free_ns)
        busy = sum(map(bool, occupancy.in_flight)) if executors > 1 else 0
        return QueueView(  # by position: names cost 0.6 us, a tenth of a decision
            queued_rows,
            max_rows,
            queue.oldest_ready_ns(first_rows, self.columns.ready_ns),
            self._head_of(first_rows),
            int(self.announced / scale + 0.5),
            NEVER_NS,
            self.last_completion_ns,
            occupancy.free_ns[executor] if occupancy.in_flight[executor] else 0,
            self._fixed_ns,
            self._per_row_ns,
            self.service if scale == 1.0 else self._by_rows,
            full_rows,
            queue.deadlines,
            self._etas,
            self.offered.rates(0, now_ns)[0] / scale,
            self.shed_ns,
            self.sla_ns,
            self.margins.kg,
            executors,
            busy,
            occupancy.last_start_ns,
            self.ample_ns,
            self._lessons.is_stale(now_ns),
            self.is_prompt,
        )

    def _etas(self, now_ns: int) -> list[tuple[int, float]]:
        """When rows are expected: those on their way, the clients of the last batches, else the rest of a burst."""
        etas = self.returns.etas(now_ns)
        if self.announced:
            etas += [(eta_ns, 1.0) for eta_ns in self.announced_etas() if eta_ns + OVERDUE_NS > now_ns]
            etas.sort()
        if not etas and self.returns.active:
            rows = self.queue.rows
            oldest_ns = self.queue.oldest_ready_ns(rows, self.columns.ready_ns)
            return self.bursts.etas(oldest_ns, rows, self._fixed_ns, now_ns)
        return etas

    def decide(self, executor: int, now_ns: int) -> Dispatch | WaitUntil:
        """What an executor whose gate is open should do.

        After a `Dispatch` the caller expires the rows it says to drop, takes the batch and calls `started`.
        """
        if not self.queue.rows:
            return WaitUntil(NEVER_NS)
        return plain_decision(self, executor, now_ns) or self.policy.decide(
            self.view(executor, now_ns), now_ns
        )

    def _head_of(self, rows: int) -> int:
        self.head_ns = self.queue.head_deadline_ns(rows)
        return self.head_ns

    def started(self, units: float, head_deadline_ns: int, executor: int, now_ns: int) -> Cut:
        """A batch has been cut and given to an executor.

        Args:
            units: its units.
            head_deadline_ns: the earliest deadline in it.
            executor: which.
            now_ns: the time of the event.
        """
        service, rule = self.service, self.rule
        if units == rule.full_units:
            run_ns, deviation_ns = rule.full_ns, rule.full_deviation_ns
        else:
            run_ns, deviation_ns = service.mean_ns(units), service.deviation_ns(units)
        predicted_ns = self.occupancy.started(executor, run_ns, now_ns)
        near = head_deadline_ns - predicted_ns < 1.2 * service.k * deviation_ns
        return Cut(executor, units, predicted_ns, near)

    def finished(
        self,
        cut: Cut,
        deadlines_ns: Sequence[int],
        run_ns: int,
        now_ns: int,
        *,
        failed: bool = False,
        way_ns: int = 0,
    ) -> None:
        """A batch has come back; the caller releases its units when its requests have ended.

        Args:
            cut: what `started` returned.
            deadlines_ns: deadlines of its rows; may be empty while `is_tense` is false.
            run_ns: how long it ran.
            now_ns: the time of the event.
            failed: whether it raised, so that nothing is learnt from how long it took.
            way_ns: what it took besides.
        """
        self.last_completion_ns = now_ns
        self.occupancy.finished(cut.executor, cut.predicted_ns, now_ns)
        is_fair = now_ns - self._overruled_ns >= self.sla_ns and not self._lessons.is_probing
        if len(deadlines_ns) and not failed and is_fair:
            late = sum([deadline_ns < now_ns for deadline_ns in deadlines_ns])
            if cut.near or late:
                self.margins.cut(len(deadlines_ns), late)
            if self.is_tense(now_ns) or self._dropped:
                limit_ns = now_ns + self.rule.near_ns
                near = sum([deadline_ns < limit_ns for deadline_ns in deadlines_ns])
                self.margins.promised(near + self._dropped, late + self._dropped)
                self._dropped = 0
        if failed:
            return
        if self._learner is not None:
            self._learner.learn(round(cut.units), run_ns)
        if self._lessons.learn(self.service, cut.units, run_ns, way_ns, now_ns):
            self.refresh()

    @property
    def learnt_ns(self) -> int:
        """When something was learnt last from how long a batch ran."""
        return self._lessons.learnt_ns

    def is_tense(self, now_ns: int) -> bool:
        """Whether within the last default deadline one was refused, or admitted with a risk."""
        return now_ns - self._tense_ns < self.sla_ns

    def dropped(self, requests: int, now_ns: int) -> None:
        """Ready requests have missed their deadline without having been executed: promises broken if any were risky."""
        if self.is_tense(now_ns) and now_ns - self._overruled_ns >= self.sla_ns:
            self._dropped += requests
