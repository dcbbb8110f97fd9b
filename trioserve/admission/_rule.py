"""Whether a request that arrives now will be answered in time, and if not, when to come again.

A request is shed before any of its payload is kept if its predicted finish, with a margin for what is uncertain about
it, lies behind its deadline, or if it would push a request that has been admitted already behind its own. Predictions
come from the service-time model, never from the measured throughput: a limit that follows the throughput sheds half
of a burst that meets a server which has been idle.

Far from saturation none of this is computed: see `Rule.is_calm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf, sqrt
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MEAN_GAIN: Final = 1 / 32
"""Of the service-time model: an error of its mean is an error of every batch until one's turn."""

FIRST_Z: Final = 3.5
CAP_SHARE: Final = 1.25
"""Of what can be served within the SLA, that may be reserved."""

MAX_RHO: Final = 0.5
MOST_OVERTAKING: Final = 0.995
"""Part of the capacity, at most, that those who come later and go first are believed to take. With less, some of a
lesser class are admitted when the better ones alone ask for more than there is, and three in four are dropped later."""

CALM_BATCHES: Final = 2
"""Full batches an executor that may be reserved while one comparison decides."""

RETRY_SHARE: Final = 0.3
"""Of the capacity, that is promised to those who come again."""

MAX_RETRY_NS: Final = 1_000_000_000
HOPELESS_BATCHES: Final = 2
"""A request that is this many full batches late is lost already and need not be protected."""

MOST_LOOKS: Final = 16
"""Batches of another model that are looked at before it is put off."""


class Service(Protocol):
    """What the rule asks of a service-time model; `trioserve.batching.ServiceModel` is one."""

    def mean_ns(self, units: float) -> float:
        """Expected run time of a batch of so many units."""
        ...

    def deviation_ns(self, units: float) -> float:
        """Its mean absolute deviation."""
        ...

    def quantile_ns(self, units: float) -> float:
        """The run time that it hardly exceeds."""
        ...


class Situation(NamedTuple):
    """What a decision near saturation depends on. Instants are monotonic nanoseconds, rates are per nanosecond."""

    ahead: float
    """Units queued or announced that will be served first."""
    waiting: float
    """Units queued or announced in all."""
    reserved: float
    """Units admitted and not finished."""
    free_ns: Sequence[int]
    """When each executor is expected to be free, ascending; in the past if it is."""
    idle: bool
    """Whether an executor is free."""
    rate: float
    """Units offered, refused ones included."""
    rho: float
    """Share of the capacity that is offered with shorter deadlines."""
    eta_ns: int
    """Time until the payload is complete; 0 if it is."""
    overtaken: float
    """Units of better classes that are expected to come until an executor is free, and to be served first."""
    left_share: float
    """Of the SLA, what it must have left over for other tenants and classes; 0 if it leaves them no room."""
    deadlines_ns: Callable[[int, int], Sequence[int]] | None
    """Of the rows that will be served after it, in service order, the deadlines of every so manieth: from which number
    on, and how many from one to the next. None if all that wait are ahead."""
    units_per_row: float = 1.0
    """Units of each of these rows."""
    spare_ns: float = inf
    """By how much the promises of other models may be put off."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return self.idle and not self.reserved

    def behind(self, others_ns: float, now_ns: int) -> Situation:
        """The same behind what is queued for other models of the executors and will be served first."""
        free_ns = [int(max(now_ns, at_ns) + others_ns) for at_ns in self.free_ns]
        return self._replace(free_ns=free_ns, idle=self.idle and not others_ns)

    def beside(self, overtaking: float, capacity: float, now_ns: int) -> Situation:
        """The same beside better classes that ask for a part of the capacity, units a nanosecond."""
        wait_ns = max(0, self.free_ns[0] - now_ns)
        return self._replace(
            rho=min(MOST_OVERTAKING, self.rho + overtaking),
            overtaken=float(int(overtaking * capacity * wait_ns)),
        )


class Verdict(NamedTuple):
    """The answer to a run."""

    admitted: int
    """Requests from its front."""
    excess_ns: float
    """By how much the first refused one would have been late; 0 if none was refused."""
    is_near: bool = False
    """Whether one was refused, or the last admitted one has less time to spare than the margin that it was given."""


class Rule:
    """The rule of one model.

    Args:
        service: its service-time model.
        executors: how many run it.
        max_units: units of its largest batch.
        sla_ns: its default deadline.
        random: draws from [0, 1); spreads those who come again.
    """

    def __init__(
        self,
        service: Service,
        *,
        executors: int = 1,
        max_units: int,
        sla_ns: int,
        random: Callable[[], float],
    ) -> None:
        self.executors: Final = executors
        self.sla_ns: Final = sla_ns
        self._random: Final = random
        self._promised_ns = 0.0
        """Until when the capacity for those who come again has been given away."""
        self._is_near = False
        self._finishes: Final[dict[float, tuple[float, float]]] = {}
        """When who is at a place behind the one that is asked about is finished, and what is near to that."""
        self.near_ns = 0.0
        """Time to spare below which the last request that was asked about was admitted with a risk."""
        self.refresh(service, max_units, FIRST_Z, max_units)

    def refresh(self, service: Service, full_units: int, z: float, max_units: int) -> None:
        """Takes over what has been learnt; called when a batch has finished.

        Args:
            service: the service-time model.
            full_units: units of a batch that is full enough.
            z: the margin, in mean deviations.
            max_units: units of the largest batch.
        """
        self.service = service
        self.z = z
        self.max_units = max_units
        self.full_units = full_units
        self.full_ns = service.mean_ns(full_units)
        self.full_deviation_ns = service.deviation_ns(full_units)
        largest_ns = max(1.0, service.mean_ns(self.max_units))
        self.capacity = self.executors * self.max_units / largest_ns
        """Units a nanosecond."""
        self.cap_units = max(2 * self.max_units, ceil(CAP_SHARE * self.capacity * self.sla_ns - 1e-6))
        """Units that may be reserved: the semaphore of rows, from the model."""
        self.calm_units = CALM_BATCHES * full_units * self.executors
        uncertain_ns = z * self.full_deviation_ns * sqrt(CALM_BATCHES + 3.0)
        self.calm_ns = (CALM_BATCHES + 2) * self.full_ns + self.full_deviation_ns + uncertain_ns

    # ---------------------------------------------------------------- the question

    def rho_of(self, shorter: float) -> float:
        """The part of the capacity that shorter deadlines will take, if they go on as they do.

        Args:
            shorter: units a nanosecond that are offered with shorter deadlines.
        """
        return min(MAX_RHO, shorter / self.capacity)

    def is_calm(self, reserved: float, deadline_ns: int, now_ns: int) -> bool:
        """Whether a request is admitted without further thought.

        So few are reserved, and its deadline is so far away, that the full rule would admit it.

        Args:
            reserved: units reserved, its own included.
            deadline_ns: its deadline.
            now_ns: the time at which its payload is at hand.
        """
        return reserved <= self.calm_units and deadline_ns - now_ns >= self.calm_ns

    def admit(
        self, count: int, units_each: float, deadline_ns: int, now_ns: int, situation: Situation
    ) -> Verdict:
        """How many requests from the front of a run are admitted.

        Args:
            count: requests of the run; they have one deadline.
            units_each: units of each.
            deadline_ns: their deadline.
            now_ns: the time of the event.
            situation: everything else.
        """
        self._finishes.clear()
        excess_ns = self._excess(0, units_each, deadline_ns, now_ns, situation)
        if excess_ns > 0:
            return Verdict(0, excess_ns, True)
        low, high, excess_ns = 1, count, 0.0
        while (
            low < high
        ):  # the finish is monotone in the position: the last that is in time is found by halving
            middle = (low + high + 1) // 2
            over_ns = self._excess(middle - 1, units_each, deadline_ns, now_ns, situation)
            if over_ns > 0:
                high, excess_ns = middle - 1, over_ns
            else:
                low = middle
        return Verdict(low, excess_ns, low < count or self._is_near)

    def _excess(
        self, position: int, units_each: float, deadline_ns: int, now_ns: int, situation: Situation
    ) -> float:
        """By how much request number `position` of a run is late, or makes another late; 0 if it is admitted."""
        before = position * units_each
        # Who brings more time than usual may wait behind more.
        cap_units = max(self.cap_units, CAP_SHARE * self.capacity * (deadline_ns - now_ns))
        if situation.reserved + before + units_each > cap_units:
            return max(1.0, self.service.mean_ns(self.max_units))
        finish_ns = self._finish(situation.ahead + before + units_each - 1, now_ns, situation)
        if situation.left_share and (situation.waiting or not situation.idle):
            finish_ns += max(self.service.quantile_ns(self.full_units), situation.left_share * self.sla_ns)
        if finish_ns > deadline_ns:
            return finish_ns - deadline_ns
        self._is_near = deadline_ns - finish_ns < self.near_ns / 2
        units, ahead, waiting = before + units_each, situation.ahead, situation.waiting
        if situation.spare_ns < inf:
            more_ns = self.run_ns(ahead + units, waiting + units) - self.run_ns(ahead, waiting)
            if more_ns > situation.spare_ns:
                return more_ns - situation.spare_ns
        if situation.deadlines_ns is None:
            return 0.0
        return self._displaced(situation.deadlines_ns, units, now_ns, situation)

    def _finish(self, ahead: float, now_ns: int, situation: Situation) -> float:
        """When a unit behind `ahead` others is finished, all margins included."""
        full = self.full_units
        turn, rest = divmod(ahead + situation.overtaken, full)
        batches, executor = divmod(int(turn), self.executors)
        free_ns = situation.free_ns[executor]
        if free_ns <= now_ns:
            free_ns = now_ns if situation.idle else now_ns + int(self.full_deviation_ns)
        base_ns = max(free_ns, now_ns + situation.eta_ns)
        wait_ns = base_ns + batches * self.full_ns - now_ns
        size = min(float(full), rest + 1 + int(situation.rate * wait_ns))
        if size == full:
            mean_ns, deviation_ns = self.full_ns, self.full_deviation_ns
        else:
            mean_ns, deviation_ns = self.service.mean_ns(size), self.service.deviation_ns(size)
        finish_ns = base_ns + batches * self.full_ns / (1 - situation.rho) + mean_ns
        if situation.idle and not situation.waiting:
            z, busy = 1.0, 0
        else:
            z, busy = self.z, 0 if situation.idle else 1
        full_deviation_ns = self.full_deviation_ns
        drift_ns = (batches + 1) * full_deviation_ns
        margin_ns = z * sqrt(
            (batches + busy) * full_deviation_ns * full_deviation_ns
            + deviation_ns * deviation_ns
            + MEAN_GAIN / 2 * drift_ns * drift_ns
        )
        self.near_ns = 2 * margin_ns
        return finish_ns + margin_ns

    def _displaced(
        self,
        deadlines_ns: Callable[[int, int], Sequence[int]],
        units: float,
        now_ns: int,
        situation: Situation,
    ) -> float:
        """By how much one is late whom `units` more ahead of it push into a later batch; 0 if none is.

        Whole stretches are in time whose earliest deadline is behind the finish of their last batches: such a stretch
        is made twice as long while they are, and half as long until one is found that is not.
        """
        full, pushed, each = self.full_units, int(units + 0.5), situation.units_per_row
        hopeless_ns = HOPELESS_BATCHES * self.full_ns
        ahead = int(situation.ahead)
        plain = situation._replace(eta_ns=0) if situation.eta_ns else situation
        first, rows = -(-(ahead + pushed) // full) * full, max(1, round(full / each))
        places_ns = deadlines_ns(int((first - pushed - ahead) / each), rows)
        start, length, count = 0, 1, len(places_ns)
        while start < count:
            end = min(start + length, count)
            finish_ns = 0.0
            for number in range(max(start, end - self.executors), end):
                place = first + number * rows * each + each - 1
                finish_ns = max(finish_ns, self._finish_at(place, now_ns, plain))
            over_ns = finish_ns - min(places_ns[start:end])
            if over_ns <= 0:
                start, length = end, 2 * length
            elif end - start > 1:
                length = (end - start) // 2
            elif over_ns <= hopeless_ns:
                return over_ns
            else:
                start = end
        return 0.0

    def _finish_at(self, place: float, now_ns: int, situation: Situation) -> float:
        """`_finish` of those behind the request that is asked about: the same however many of a run go before them."""
        if place not in self._finishes:
            self._finishes[place] = self._finish(place, now_ns, situation), self.near_ns
        finish_ns, self.near_ns = self._finishes[place]
        return finish_ns

    # ---------------------------------------------------------------- other models

    def run_ns(self, ahead: float, waiting: float) -> float:
        """How long the batches run that the first units are in; others who wait fill the last one.

        Args:
            ahead: these units.
            waiting: units in all.
        """
        full = self.full_units
        batches, rest = divmod(min(waiting, ceil(ahead / full) * full), full)
        return (batches * self.full_ns + (self.service.mean_ns(rest) if rest else 0.0)) / self.executors

    def spare_ns(self, now_ns: int, situation: Situation) -> float:
        """By how much those who are behind in a situation may be put off; infinite if nobody is.

        Args:
            now_ns: the time of the event.
            situation: of somebody before them.
        """
        if situation.deadlines_ns is None:
            return inf
        full, each, ahead = self.full_units, situation.units_per_row, int(situation.ahead)
        rows = max(1, round(full / each))
        next_row = round((full - ahead % full) / each)
        behind_ns = situation.deadlines_ns
        heads_ns = [*behind_ns(0, 1 + int(situation.waiting)), *behind_ns(next_row, rows)]
        spare_ns = inf
        for number in range(0, len(heads_ns), ceil(len(heads_ns) / MOST_LOOKS)):
            end = min((ahead // full + number + 1) * full, situation.waiting)
            left_ns = heads_ns[number] - self._finish(end - 1, now_ns, situation)
            if left_ns >= -HOPELESS_BATCHES * self.full_ns:
                spare_ns = min(spare_ns, left_ns)
        return spare_ns

    # ---------------------------------------------------------------- coming again

    def retry_after_us(self, excess_ns: float, now_ns: int, units: float = 1.0) -> int:
        """When a refused request should come again, microseconds from now.

        Each refusal moves the moment on, so that they come back at the rate at which there will be room for them.

        Args:
            excess_ns: by how much it would have been late.
            now_ns: the time of the event.
            units: what will come again then.
        """
        promised_ns = max(self._promised_ns, now_ns + excess_ns) + units / (RETRY_SHARE * self.capacity)
        self._promised_ns = min(promised_ns, now_ns + MAX_RETRY_NS)
        return int((self._promised_ns - now_ns) * (0.75 + 0.5 * self._random()) / 1_000)

    def retries_after_us(
        self, excess_ns: float, now_ns: int, scatter: NDArray[np.float64], units: float = 1.0
    ) -> NDArray[np.float64]:
        """When each of some requests that are refused together should come again; see `retry_after_us`.

        Args:
            excess_ns: by how much they would have been late.
            now_ns: the time of the event.
            scatter: a random number from [0, 1) for each.
            units: of each.
        """
        step_ns = units / (RETRY_SHARE * self.capacity)
        first_ns = max(self._promised_ns - now_ns, excess_ns)
        after_ns: NDArray[np.float64] = first_ns + step_ns * np.arange(1.0, len(scatter) + 1)
        np.minimum(after_ns, MAX_RETRY_NS, out=after_ns)
        self._promised_ns = now_ns + float(after_ns[-1])
        after_ns *= (0.75 + 0.5 * scatter) / 1_000
        return after_ns
