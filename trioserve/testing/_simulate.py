"""The scheduler in virtual time: tens of thousands of requests a second of real time, and the same batches every time.

What is simulated is what surrounds the scheduler: arrivals, executors whose run times scatter, clients that think or
come again. The scheduler itself is the server's own.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import Final

import numpy as np

from trioserve.batching import Dispatch, Policy, ServiceModel
from trioserve.engine import Occupancy, Scheduler
from trioserve.request import NEVER_NS

from ._arrivals import SECOND_NS, ClosedLoop, Trace
from ._simulated_door import SimulatedDoor
from ._simulated_queue import SimulatedQueue
from ._simulation import DROPPED, LATE, OK, SHED, BatchRecord, Simulation

NOISE: Final = 0.07
"""Standard deviation of the logarithm of run times, unless another is asked for."""

DRAWS: Final = 1 << 14

FINISH, WAKE, READY, ARRIVE = range(4)

Event = tuple[int, int, int, object]
"""When, a number that makes the order of simultaneous events definite, which kind, and with what."""


def simulate(
    policy: Policy,
    arrivals: Trace | ClosedLoop,
    service_model: ServiceModel,
    *,
    max_rows: int = 32,
    sla_ns: int = 50_000_000,
    executors: int = 1,
    noise: float = NOISE,
    seed: int = 0,
    admission: bool = True,
    depth: int = 1,
) -> Simulation:
    """Runs the scheduler of one model in virtual time.

    Args:
        policy: cuts the batches.
        arrivals: who asks when.
        service_model: what a batch takes on average; the scheduler starts with a copy of it, as after a warm-up, and
            learns from there.
        max_rows: largest batch.
        sla_ns: default deadline.
        executors: how many run the model.
        noise: standard deviation of the logarithm of run times.
        seed: of the run times, and of what the clients draw.
        admission: whether the admission rule decides; otherwise only the cap on what may be reserved does.
        depth: batches that may be with an executor, the running one included.

    Returns:
        What became of every request and batch. The same arguments give the same result.
    """
    return _World(
        policy,
        arrivals,
        service_model,
        max_rows=max_rows,
        sla_ns=sla_ns,
        executors=executors,
        noise=noise,
        seed=seed,
        admission=admission,
        depth=depth,
    ).run()


class _World:
    """One simulation under way."""

    def __init__(
        self,
        policy: Policy,
        arrivals: Trace | ClosedLoop,
        truth: ServiceModel,
        *,
        max_rows: int,
        sla_ns: int,
        executors: int,
        noise: float,
        seed: int,
        admission: bool,
        depth: int,
    ) -> None:
        self._arrivals: Final = arrivals
        self._loop: Final = arrivals if isinstance(arrivals, ClosedLoop) else ClosedLoop(0, 0)
        self._sla_ns: Final = sla_ns
        self._admission: Final = admission
        self._depth: Final = depth
        self._until_ns: Final = [0] * executors
        """When each executor will really be free."""
        rng = np.random.default_rng([3, seed])
        self._draws: Final[list[float]] = rng.lognormal(-(noise**2) / 2, noise, DRAWS).tolist()
        self._rng: Final = random.Random(seed)  # noqa: S311 - a simulation
        self._means: Final = [truth.mean_ns(rows) for rows in range(max_rows + 1)]
        self.at_ns: Final[list[int]] = []
        self.deadline_ns: Final[list[int]] = []
        self.ready_ns: Final[list[int]] = []
        self.finish_ns: Final[list[int]] = []
        self._state: Final = bytearray()
        self._client: Final[list[int]] = []
        self._batches: Final[list[BatchRecord]] = []
        self._queue: Final = SimulatedQueue(self.deadline_ns)
        self._occupancy: Final = Occupancy(executors)
        self._scheduler: Final = Scheduler(
            self._queue,
            self,
            policy,
            ServiceModel.from_state(truth.to_state()),
            max_rows=max_rows,
            sla_ns=sla_ns,
            random=self._rng.random,
            occupancy=self._occupancy,
        )
        self._scheduler.announced_etas = self._announced_etas
        self._door: Final = self._make_door(executors)
        self._under_way: Final[dict[int, int]] = {}
        """Requests whose payload is being received, and when it will be complete."""
        self._key_ns: Final[dict[int, int]] = {}
        """Their keys."""
        self._events: Final[list[Event]] = []
        self._serial = 0
        self._wake_ns = NEVER_NS
        self._end_ns = NEVER_NS

    def _make_door(self, executors: int) -> SimulatedDoor | None:
        trace = self._arrivals
        if isinstance(trace, ClosedLoop) or (trace.classes is None and trace.tenants is None):
            return None
        return SimulatedDoor(self._scheduler, trace, executors)

    # ---------------------------------------------------------------- the loop

    def run(self) -> Simulation:
        """Runs until nothing is left to do."""
        arrivals = self._arrivals
        if isinstance(arrivals, ClosedLoop):
            self._end_ns = int(arrivals.seconds * SECOND_NS)
            for client in range(arrivals.clients):
                self._push(self._think_ns(), ARRIVE, (client, 0, -1))
            self._drain(NEVER_NS)
        else:
            self._run_trace(arrivals)
        return Simulation(
            at_ns=np.array(self.at_ns, np.int64),
            deadline_ns=np.array(self.deadline_ns, np.int64),
            finish_ns=np.array(self.finish_ns, np.int64),
            state=np.frombuffer(bytes(self._state), np.uint8),
            batches=tuple(self._batches),
            scheduler=self._scheduler,
        )

    def _run_trace(self, trace: Trace) -> None:
        count = len(trace)
        timeouts = [self._sla_ns] * count if trace.timeout_ns is None else trace.timeout_ns.tolist()
        bodies = [0] * count if trace.body_ns is None else trace.body_ns.tolist()
        events = self._events
        columns = zip(trace.at_ns.tolist(), timeouts, bodies, strict=True)
        for origin, (at_ns, timeout_ns, body_ns) in enumerate(columns):
            if events and events[0][0] <= at_ns:
                self._drain(at_ns)
            self._arrive(at_ns, timeout_ns, body_ns, -1, 0, origin)
        self._drain(NEVER_NS)

    def _drain(self, until_ns: int) -> None:
        """Handles all events up to an instant."""
        events = self._events
        while events and events[0][0] <= until_ns:
            at_ns, _, kind, what = heappop(events)
            if kind == FINISH:
                self._finish(at_ns, *what)  # type: ignore[misc]  # a tuple of this kind's arguments
            elif kind == WAKE:
                if at_ns == self._wake_ns:
                    self._wake_ns = NEVER_NS
                    self._dispatch(at_ns)
            elif kind == READY:
                self._ready(what, at_ns)  # type: ignore[arg-type]  # a request
            elif at_ns < self._end_ns:
                self._arrive(at_ns, self._sla_ns, 0, *what)  # type: ignore[misc]  # a client and its attempt

    def _push(self, at_ns: int, kind: int, what: object) -> None:
        self._serial += 1
        heappush(self._events, (at_ns, self._serial, kind, what))

    # ---------------------------------------------------------------- requests

    def _arrive(
        self, now_ns: int, timeout_ns: int, body_ns: int, client: int, attempt: int, origin: int
    ) -> None:
        scheduler, queue = self._scheduler, self._queue
        request = len(self.at_ns)
        deadline_ns = now_ns + timeout_ns
        self.at_ns.append(now_ns)
        self.deadline_ns.append(deadline_ns)
        self.ready_ns.append(now_ns)
        self.finish_ns.append(0)
        self._client.append(client)
        self._state.append(OK)
        if client >= 0:
            scheduler.returns.arrived(client, now_ns)
        if queue.rows and self.deadline_ns[queue.head] <= now_ns:
            self._expire(now_ns)
        key_ns = deadline_ns
        if self._door is not None:
            admitted, key_ns = self._door.admit(origin, deadline_ns, now_ns, body_ns)
        elif self._admission:
            admitted = scheduler.admit(1, 1, deadline_ns, now_ns, eta_ns=body_ns)[0]
        else:
            admitted = scheduler.reserved < scheduler.rule.cap_units
            scheduler.offered.count(1, timeout_ns)
            scheduler.reserved += admitted
        if not admitted:
            self._state[request] = SHED
            self._come_again(client, attempt, origin, now_ns)
        elif body_ns:
            scheduler.announced += 1
            self._under_way[request] = now_ns + body_ns
            self._key_ns[request] = key_ns
            self._push(now_ns + body_ns, READY, request)
        else:
            queue.push(request, key_ns)
            if min(self._occupancy.in_flight) < self._depth:
                self._dispatch(now_ns)

    def _ready(self, request: int, now_ns: int) -> None:
        self._scheduler.announced -= 1
        del self._under_way[request]
        self.ready_ns[request] = now_ns
        self._queue.push(request, self._key_ns.pop(request))
        self._dispatch(now_ns)

    def _announced_etas(self) -> list[int]:
        return list(self._under_way.values())

    def _come_again(self, client: int, attempt: int, origin: int, now_ns: int) -> None:
        """What the sender of a request does that was not served."""
        if client >= 0:
            self._push(now_ns + self._think_ns(), ARRIVE, (client, 0, origin))
        elif isinstance(self._arrivals, Trace) and attempt < self._arrivals.retries:
            after_ns = 1_000 * self._scheduler.retry_after_us(now_ns)
            self._push(now_ns + after_ns, ARRIVE, (client, attempt + 1, origin))

    def _think_ns(self) -> int:
        loop = self._loop
        return max(1, int(loop.think_ns * (1 + loop.spread * self._rng.gauss(0, 1))))

    def _expire(self, now_ns: int) -> None:
        queue = self._queue
        while queue.rows and self.deadline_ns[queue.head] <= now_ns:
            self._drop(queue.take(1), now_ns)
        if self._door is not None:
            self._drop(queue.expired(now_ns), now_ns)

    def _drop(self, requests: list[int], now_ns: int) -> None:
        for request in requests:
            self._state[request] = DROPPED
            self._scheduler.reserved -= 1
            self._scheduler.dropped(1, now_ns)
            if self._client[request] >= 0:
                self._come_again(self._client[request], 0, -1, now_ns)

    # ---------------------------------------------------------------- batches

    def _dispatch(self, now_ns: int) -> None:
        """Gives idle executors what the policy wants them to have."""
        queue, scheduler, in_flight = self._queue, self._scheduler, self._occupancy.in_flight
        while queue.rows and (batches := min(in_flight)) < self._depth:
            if queue.head_deadline_ns(queue.rows) <= now_ns:
                self._expire(now_ns)
                continue
            executor = in_flight.index(batches)
            decision = scheduler.decide(executor, now_ns)
            if not isinstance(decision, Dispatch):
                if decision.at_ns < self._wake_ns or self._wake_ns <= now_ns:
                    self._wake_ns = decision.at_ns
                    self._push(decision.at_ns, WAKE, None)
                return
            if decision.drop:
                self._drop(queue.take(decision.drop), now_ns)
            if decision.rows:
                self._start(executor, decision, now_ns)

    def _start(self, executor: int, decision: Dispatch, now_ns: int) -> None:
        queue = self._queue
        head_deadline_ns = queue.head_deadline_ns(decision.rows)
        rows = queue.take(decision.rows)
        count = len(rows)
        if self._scheduler.returns.active:
            self._scheduler.bursts.observe(sorted([self.ready_ns[request] for request in rows]))
        run_ns = int(self._means[count] * self._draws[len(self._batches) % DRAWS])
        start_ns = max(now_ns, self._until_ns[executor])
        finish_ns = self._until_ns[executor] = start_ns + run_ns
        cut = self._scheduler.started(count, head_deadline_ns, executor, now_ns)
        record = BatchRecord(
            start_ns, finish_ns, count, decision.reason, executor, cut.predicted_ns, queue.rows
        )
        self._batches.append(record)
        self._push(finish_ns, FINISH, (rows, cut, run_ns))

    def _finish(self, now_ns: int, rows: list[int], cut: object, run_ns: int) -> None:
        scheduler, state, finish_ns, clients = self._scheduler, self._state, self.finish_ns, self._client
        deadlines_ns = [self.deadline_ns[request] for request in rows]
        scheduler.finished(cut, deadlines_ns, run_ns, now_ns)  # type: ignore[arg-type]  # from the heap
        scheduler.reserved -= len(rows)
        for request, deadline_ns in zip(rows, deadlines_ns, strict=True):
            finish_ns[request] = now_ns
            if deadline_ns < now_ns:
                state[request] = LATE
            client = clients[request]
            if client >= 0:
                scheduler.returns.replied(client, now_ns)
                self._push(now_ns + self._think_ns(), ARRIVE, (client, 0, -1))
        self._dispatch(now_ns)
