"""Admission of one model beyond its permits: far from saturation one comparison, near it the whole rule.

The hot path asks two numbers, `Lane.calm_rows` and `Lane.calm_ns`. While fewer rows are under way and the request has
more time than that, the rule would admit it, and it is not asked. Everything else goes through `reserve`.

The other end is as cheap: a request that is shed misses its deadline by some time, and until that has passed, or until
a batch comes back, whoever is of its class and has no more time misses it too.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from trioserve.admission import SEEN_NS, Classes, Tenants
from trioserve.request import NEVER_NS
from trioserve_protocol import CLASS_MASK, ErrorCode

from ._arrival import Arrival

if TYPE_CHECKING:
    from trioserve.admission import Account

    from ._lane import Lane
    from ._quarantine import Quarantine

CALM_SHARE: Final = 0.5
"""Of the default deadline: what is under way may take so long, with its margin, before the rule is asked."""

CALM_MARGIN: Final = 1.25
"""What a batch may take in the worst case, as a multiple of its mean, in a row of many."""

MAX_ETA_SHARE: Final = 0.25
"""Of the time that a request has, which its own payload is believed to need at most: the mean is of all clients, and
one that sends slowly must not have others refused."""

OVERDUE_WAYS: Final = 3.0
"""A body that takes more than so many times what is usual, and 1 ms, is not counted on any more: its sender has
stalled, and must not have others refused. Three, because senders differ."""

LOOK_NS: Final = 1_000_000
"""Least time between two looks at what is overdue."""

MAX_SHEDS: Final = 4_096
OPEN: Final = (0, 0, 0, 0)
"""By class: nobody was shed."""

SAME_TIME: Final = 256
"""Part of the default deadline by which two requests may differ in the time that they have and count as equal."""


class Room:
    """Counts what was shed although there would have been room: a batch with a free place that ended in its time."""

    __slots__ = ("_sheds", "left")

    def __init__(self) -> None:
        self._sheds: Final[deque[tuple[int, int]]] = deque(maxlen=MAX_SHEDS)
        """(deadline, requests), since the last batch with a free place."""
        self.left = 0
        """Requests shed that left room."""

    def shed(self, deadline_ns: int, requests: int) -> None:
        """Some requests of one deadline have been shed."""
        self._sheds.append((deadline_ns, requests))

    def was_there(self, finish_ns: int) -> None:
        """A batch with a free place is started, which will end at `finish_ns`."""
        if self._sheds:
            self.left += sum([requests for deadline_ns, requests in self._sheds if deadline_ns >= finish_ns])
            self._sheds.clear()


class Door:
    """Decides who is admitted to a model.

    Args:
        lane: the model.
        tenants: accounts of all models.
    """

    quarantine: Quarantine
    """What is known of inputs that kill workers; set by the engine."""

    def __init__(self, lane: Lane, tenants: Tenants) -> None:
        self._lane: Final = lane
        self.tenants: Final = tenants
        self.classes: Final = Classes(lane.default_deadline_ns)
        self.room: Final = Room()
        self.neighbours: list[Lane] = []
        """Other models on the same executor."""
        self.full_until_ns = list(OPEN)
        """Until when, by class, those are shed without asking the rule who have no more time than somebody who was: one
        row, whose payload is here as soon."""
        self._full_timeouts_ns = list(OPEN)
        self._full_etas_ns: list[float] = list(OPEN)
        """From now, when that one's payload would have been complete, nearly."""
        self._again_rows = self._again_ns = 0
        """Rows that were shed so, and that the scheduler has not been told of; and the time that they had."""
        self._overdue_rows = self._look_ns = 0
        """Rows of bodies that are not counted on any more; and when to look again."""
        self._offered = 0
        """Requests received that the scheduler has been told of."""

    def is_calm(self, rows: int, timeout_ns: int, flags: int, eta_ns: float = 0.0) -> bool:
        """Whether so many rows are admitted without further thought.

        Args:
            rows: of one frame or run.
            timeout_ns: the shortest time that a request of it has.
            flags: of the wire.
            eta_ns: time until its payload is usually complete.
        """
        lane = self._lane
        return (
            timeout_ns - min(eta_ns, MAX_ETA_SHARE * timeout_ns) >= lane.calm_ns
            and lane.gate.rows.taken + rows <= lane.calm_rows
            and not flags & CLASS_MASK
        )

    def reserve(
        self,
        account: Account | None,
        flags: int,
        requests: tuple[int, int],
        timeout_ns: int,
        now_ns: int,
        eta_ns: float = 0.0,
    ) -> tuple[int, ErrorCode]:
        """Asks the rule about requests of one deadline, one class and one tenant.

        Args:
            account: their tenant's; None for many, of whom none has more than its share, whom the caller counts.
            flags: of the wire.
            requests: how many, and the rows of each.
            timeout_ns: the time that they have.
            now_ns: the time of the event.
            eta_ns: time until their payload is usually complete; 0 if it is.

        Returns:
            How many are admitted, from the front, and why the others are not (OK if all are). The caller takes the
            permits of those that are, which is what the rule counts as reserved.
        """
        count, rows_each = requests
        lane, classes, tenants, klass = self._lane, self.classes, self.tenants, flags & CLASS_MASK
        scheduler = lane.scheduler
        if now_ns < self.full_until_ns[klass] and self._is_no_better(timeout_ns, eta_ns, klass):
            return self._shed_again(account, klass, (count, rows_each), timeout_ns, now_ns)
        units_each = rows_each * scheduler.units_per_row
        self._offered += count
        self.tell(now_ns)
        scheduler.reserved = (lane.gate.rows.taken - self._overdue_rows) * scheduler.units_per_row
        self._settle_shares(now_ns)
        deadline_ns = now_ns + timeout_ns
        key_ns = deadline_ns + classes.offsets_ns[klass]
        standing = classes.standing(klass, 0.0 if account is None else account.leaves)
        admitted, code = scheduler.admit(
            count,
            units_each,
            deadline_ns,
            now_ns,
            key_ns=key_ns,
            eta_ns=int(min(eta_ns, MAX_ETA_SHARE * timeout_ns)),
            standing=standing,
            others_ns=self._others_ns(key_ns) if self.neighbours else 0.0,
            spare_ns=min([other.door.spare_ns(key_ns, now_ns) for other in self.neighbours], default=inf),
        )
        each_ns = units_each * scheduler.unit_ns
        busy_ns = admitted * each_ns
        classes.offered_ns[klass] += count * each_ns + SEEN_NS
        classes.pending_ns[klass] += busy_ns + SEEN_NS
        if account is not None:
            tenants.count(account, busy_ns + SEEN_NS)
        if code is ErrorCode.SHED:
            self.room.shed(deadline_ns, count - admitted)
            if rows_each == 1 and not standing.left_share:  # whoever comes next needs no less
                self._remember_shed(klass, timeout_ns, eta_ns, now_ns)
        if scheduler.is_tense(now_ns):
            self.alarm()
        return admitted, code

    def _remember_shed(self, klass: int, timeout_ns: int, eta_ns: float, now_ns: int) -> None:
        """For a while, those with no better prospects than this one are shed unasked."""
        scheduler = self._lane.scheduler
        most_ns = LOOK_NS if self._lane.under_way else inf  # what is announced may turn out not to come
        self.full_until_ns[klass] = now_ns + int(min(scheduler.excess_ns, most_ns))
        self._full_timeouts_ns[klass] = timeout_ns + scheduler.sla_ns // SAME_TIME
        self._full_etas_ns[klass] = eta_ns - scheduler.sla_ns // SAME_TIME

    def _settle_shares(self, now_ns: int) -> None:
        """Looks at the shares of tenants and classes where that is due."""
        if self.tenants.due_ns <= now_ns:
            self.tenants.settle(now_ns)
        if self.classes.due_ns <= now_ns:
            beside = sum([other.door.classes.load(now_ns) for other in self.neighbours])
            self.classes.settle(now_ns, beside)

    def reopen(self) -> None:
        """A batch has come back: who was shed before says nothing of who comes now."""
        self.full_until_ns[:] = OPEN

    def _is_no_better(self, timeout_ns: int, eta_ns: float, klass: int) -> bool:
        """Whether a request has no better prospects than the one that was shed; much shorter ones are infeasible."""
        longest_ns = self._full_timeouts_ns[klass]
        return longest_ns // 2 <= timeout_ns <= longest_ns and eta_ns >= self._full_etas_ns[klass]

    def _shed_again(
        self, account: Account | None, klass: int, requests: tuple[int, int], timeout_ns: int, now_ns: int
    ) -> tuple[int, ErrorCode]:
        """Sheds as somebody else was shed a moment ago; see `reserve`."""
        count, rows_each = requests
        self._offered += count
        self._again_rows += count * rows_each
        self._again_ns = timeout_ns
        scheduler = self._lane.scheduler
        scheduler.shed_ns, scheduler.shed_units = now_ns, rows_each * scheduler.units_per_row
        self.classes.offered_ns[klass] += count * rows_each * scheduler.row_ns + SEEN_NS
        if account is not None:
            self.tenants.count(account, SEEN_NS)
        self.room.shed(now_ns + timeout_ns, count)
        return 0, ErrorCode.SHED

    def _others_ns(self, key_ns: int) -> float:
        """Executor time of what is queued for other models and comes first."""
        return sum(
            [lane.scheduler.ahead_ns(lane.queue.ahead(key_ns)) for lane in self.neighbours if lane.queue.rows]
        )

    def spare_ns(self, key_ns: int, now_ns: int) -> float:
        """By how much other models may put off what is queued here and comes after a key; infinite if nothing is."""
        queue = self._lane.queue
        if not queue.rows:
            return inf
        return self._lane.scheduler.spare_ns(key_ns, self._others_ns(max(key_ns, queue.head_key_ns)), now_ns)

    def alarm(self) -> None:
        """From now on every request of these models is looked at."""
        self._lane.calm_rows = 0
        for lane in self.neighbours:
            lane.calm_rows = 0

    def tell(self, now_ns: int) -> None:
        """Tells the scheduler what was received since it was told last, and what is on its way.

        What the rule was not asked about is of the default class.
        """
        lane = self._lane
        if self._again_rows:
            lane.scheduler.shed_again(self._again_rows * lane.scheduler.units_per_row, self._again_ns)
            self._again_rows = 0
        received = lane.stats.received
        if received > self._offered:
            units = (received - self._offered) * lane.scheduler.units_per_row
            lane.scheduler.offered.count(units, lane.default_deadline_ns)
            self.classes.offered_ns[0] += units * lane.scheduler.unit_ns
            self.classes.pending_ns[0] += units * lane.scheduler.unit_ns
            self._offered = received
        if self._overdue_rows or lane.under_way:
            self._look(now_ns)
        lane.scheduler.announced = (lane.announced_rows - self._overdue_rows) * lane.scheduler.units_per_row

    def _look(self, now_ns: int) -> None:
        """Counts the rows of the bodies that are overdue."""
        lane = self._lane
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            usual_ns = min(OVERDUE_WAYS * lane.mean_way_ns, MAX_ETA_SHARE * lane.default_deadline_ns)
            before_ns = now_ns - int(usual_ns) - 1_000_000
            self._overdue_rows = 0
            for source, begun_ns in lane.under_way.items():  # oldest first
                if begun_ns > before_ns:
                    break
                if isinstance(source, Arrival):
                    self._overdue_rows += source.rows
        self._overdue_rows = min(self._overdue_rows, lane.announced_rows)

    def settle(self, now_ns: int) -> None:
        """Finds out how much may be under way while the rule is not asked; for when something has been learnt."""
        lane = self._lane
        scheduler = lane.scheduler
        rule = scheduler.rule
        if not scheduler.service.known:
            lane.calm_rows, lane.calm_ns = NEVER_NS, 0
            return
        is_away = scheduler.occupancy.is_away
        if (
            is_away
            or scheduler.is_tense(now_ns)
            or any(lane.scheduler.is_tense(now_ns) for lane in self.neighbours)
        ):
            lane.calm_rows = 0
            return
        share_ns = CALM_SHARE * scheduler.sla_ns
        models = 1 + len(self.neighbours)
        others_ns = sum([2 * other.scheduler.rule.full_ns for other in self.neighbours])
        batches = (share_ns - rule.calm_ns - others_ns) / (CALM_MARGIN * max(1.0, rule.full_ns) * models)
        units = batches * rule.full_units
        if units > rule.calm_units:
            lane.calm_ns = int(share_ns)
        else:
            lane.calm_ns = int(rule.calm_ns + others_ns)
            units = rule.calm_units
        lane.calm_rows = int(min(units, rule.cap_units) / scheduler.units_per_row)
