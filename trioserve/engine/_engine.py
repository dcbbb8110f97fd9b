"""What serves: the models, the sessions, the workers, and the time at which something is due.

Everything here is sync and belongs to one thread: a check and the change after it cannot be torn apart. A
transport's turn is `expire`, `collect` of the workers that have something, any number of calls on the `Intake`,
then `decide`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trioserve.admission import Account, Gate, Permits, Quota, Tenants
from trioserve.errors import error_for
from trioserve.observability import resident_nbytes
from trioserve.request import NEVER_NS
from trioserve_protocol import DEFAULT_LIMITS, MAX_RID, ErrorCode, Limits, Signature

from ._executor import Executor
from ._lane import Lane
from ._quarantine import Quarantine, TextQuarantine
from ._session import ReplySink, Session, SessionTable
from ._stage import Stage
from ._statistics import lane_statistics
from ._terminal import Terminal
from ._text import TextLane
from ._tokenizer import Tokenizer
from ._witness import Witness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trioserve.config import ModelConfig, QuotaConfig, ServerConfig
    from trioserve.memory import Slab
    from trioserve.request import Clock

MIN_RETRY_US: Final = 1_000
"""Shortest time a refused client is told to stay away: retrying at once would meet the same queue."""

MAX_RETRY_US: Final = 60_000_000
"""Longest time a refused client is told to stay away: no prediction reaches further."""

TRIAL_US: Final = 1_000_000
"""How long a refused client is told to stay away while a worker that has failed is being tried."""

QUIET_ROWS: Final = 4
"""Requests under way up to which the server is optimised for the latency of each, not for their number."""


class Engine:
    """Models, sessions and what is under way between them.

    Args:
        config: the server's limits.
        wire_limits: the limits of the protocol machines.
        clock: only read where no event brings a time with it.
    """

    def __init__(self, config: ServerConfig, wire_limits: Limits, clock: Clock) -> None:
        self.config: Final = config
        self.wire_limits: Final = wire_limits
        self.clock: Final = clock
        self.sessions: Final = SessionTable()
        self.lanes: Final[list[Lane]] = []
        self.executors: Final[list[Executor]] = []
        self.tokenizers: Final[list[Tokenizer]] = []
        self.byte_permits: Final = Permits(config.limits.max_queued_nbytes)
        self.tenants: Final = Tenants(
            _quota(config.quota), {name: _quota(quota) for name, quota in config.tenants.items()}
        )
        self.terminal: Final = Terminal(self.sessions, clock, self.retry_after_us)
        self._scatter: Final = np.random.default_rng().random
        self.draining = False
        self.started_ns: Final = clock.now_ns()

    # ---------------------------------------------------------------- models

    def add_model(self, config: ModelConfig, signature: Signature, slab: Slab) -> Lane:
        """Opens a model for requests, which are refused as LOADING until its worker is ready."""
        rows = min(slab.layout.slots, self.config.limits.max_queued_rows)
        gate = Gate(Permits(rows), self.byte_permits)
        lane = (TextLane if config.tokenizer else Lane)(
            config, signature, slab, gate, self.clock, self.tenants
        )
        witness = Witness(lane, self.config.record_requests if self.config.record else 0)
        lane.witness = witness if witness.is_wanted else None
        self.trust_inputs(lane)
        self.lanes.append(lane)
        self.terminal.add_lane(lane)
        return lane

    def trust_inputs(self, lane: Lane) -> None:
        """Suspects no input: what it did to another model says nothing of this one."""
        keep_ns = int(self.config.workers.quarantine_s * 1e9)
        lane.door.quarantine = Quarantine(lane.config.name, keep_ns)
        if isinstance(lane, TextLane):
            lane.text_quarantine = TextQuarantine(lane.config.name, keep_ns)

    @property
    def served(self) -> list[Lane]:
        """The models that can be asked for."""
        return [lane for lane in self.lanes if not lane.is_retired]

    def add_executor(self, lanes: list[Lane]) -> Executor:
        """Registers the worker that will run some models."""
        executor = Executor(lanes, self.terminal)
        self.executors.append(executor)
        self.tenants.executors = len(self.executors)
        return executor

    def add_tokenizer(self, lanes: list[TextLane]) -> Tokenizer:
        """Registers the worker that will tokenize for some models."""
        tokenizer = Tokenizer(lanes, self.terminal)
        self.tokenizers.append(tokenizer)
        return tokenizer

    def find(self, name: str, version: int = 0) -> Lane:
        """The model of a name, its newest version for 0.

        Raises:
            TrioserveError: no such model, or no such version of it.
        """
        served = self.served
        named = [lane for lane in served if lane.config.name == name]
        if not named:
            known = ", ".join(sorted({lane.config.name for lane in served})) or "none, no model is loaded"
            raise error_for(ErrorCode.MODEL_NOT_FOUND, f"model: expected one of {known}; got {name}")
        found = self.newest(name, version)
        if found is not None:
            return found
        has = ", ".join(str(lane.config.version) for lane in named)
        raise error_for(ErrorCode.VERSION_NOT_FOUND, f"version of {name}: expected {has}; got {version}")

    def newest(self, name: str, version: int = 0) -> Lane | None:
        """As `find`; None if there is no such model or version."""
        named = [lane for lane in self.served if lane.config.name == name]
        if version:
            named = [lane for lane in named if lane.config.version == version]
        return max(named, key=lambda lane: lane.config.version, default=None)

    # ---------------------------------------------------------------- sessions

    def open_session(self, sink: ReplySink) -> Session:
        """Registers a connection."""
        limits = self.config.limits
        session = self.sessions.open(
            sink, limits.credit_requests, limits.credit_nbytes, DEFAULT_LIMITS.max_frame_nbytes
        )
        session.account = self.tenants.own()
        return session

    def name_tenant(self, session: Session, tenant: str) -> None:
        """Counts what a connection asks for from now on for a tenant."""
        session.account = self.tenants.account(tenant, self.clock.now_ns())
        session.named.clear()

    def account(self, tenant: str | None) -> Account | None:
        """The account of a tenant; None for None."""
        return None if tenant is None else self.tenants.account(tenant, self.clock.now_ns())

    def close_session(self, session: Session) -> None:
        """Forgets a connection: its requests are cancelled and answered to nobody. Its sink is not used again."""
        session.closed = True
        self.cancel(session)
        for lane in self.lanes:
            lane.scheduler.returns.closed(session.index)
        self.sessions.remove(session)

    def cancel(self, session: Session, rid: int = 0, count: int = 1) -> None:
        """Ends requests of a session early: ids `rid` to `rid + count - 1`, all of them for `rid` 0.

        Unknown and finished ids are ignored.
        """
        if not session.inflight:
            return
        count = min(count, MAX_RID - rid + 1)  # columns of u64 would go on at 0
        for lane in self.lanes:
            slots = lane.slots
            found = slots.find(session.index, rid, count) if rid else slots.live_requests(session.index)
            for slot in found.tolist():
                self.terminal.fail(lane, slot, ErrorCode.CANCELLED_BY_CLIENT)

    def retry_after_us(self, lane: Lane, code: ErrorCode, now_ns: int = 0, requests: int = 1) -> int:
        """When a client that is refused now should come back, microseconds.

        One that is shed is told when there will be room, and one whose worker is gone when there will be another one,
        each another moment; one whose worker has failed, when that is tried again; the others, when what is queued for
        the model has run.

        Args:
            lane: the model.
            code: why it is refused.
            now_ns: the time, if it is known.
            requests: how many are told the same moment.
        """
        if code is ErrorCode.SHED and lane.service.known:
            retry_us = lane.scheduler.retry_after_us(now_ns or self.clock.now_ns(), requests)
        elif code is ErrorCode.WORKER_LOST:
            retry_us = lane.scheduler.back_after_us(now_ns or self.clock.now_ns(), requests)
        elif code is ErrorCode.UNAVAILABLE and lane.closed_by:
            left_ns = max(lane.closed_by.values()) - (now_ns or self.clock.now_ns())
            retry_us = left_ns // 1000 if left_ns > 0 else TRIAL_US
        else:
            retry_us = int(_backlog_ns(lane) / 1000)
        return MIN_RETRY_US if retry_us < MIN_RETRY_US else min(retry_us, MAX_RETRY_US)

    def retries_after_us(self, lane: Lane, count: int) -> NDArray[np.uint32]:
        """When each of some requests that are shed together should come back, microseconds; see `retry_after_us`."""
        if lane.service.known:
            scheduler, scatter = lane.scheduler, self._scatter(count)
            retries_us = scheduler.rule.retries_after_us(scheduler.excess_ns, self.clock.now_ns(), scatter)
        else:
            retries_us = np.full(count, _backlog_ns(lane) / 1000)
        return np.clip(retries_us, MIN_RETRY_US, MAX_RETRY_US).astype(np.uint32)

    def clamped_us(self, retry_us: int) -> int:
        """A time to stay away, as clients are told it."""
        return min(max(MIN_RETRY_US, retry_us), MAX_RETRY_US)

    # ---------------------------------------------------------------- time

    def expire(self, now_ns: int) -> None:
        """Answers every request whose deadline has passed, wherever it is."""
        for lane in self.lanes:
            if lane.next_deadline_ns <= now_ns:
                self.terminal.expire(lane, now_ns)

    def decide(self, now_ns: int) -> None:
        """Gives every worker what it should have now."""
        for tokenizer in self.tokenizers:
            if tokenizer.watchdog.look_ns <= now_ns:
                tokenizer.watch(now_ns)
            tokenizer.decide(now_ns)
        for executor in self.executors:
            if executor.watchdog.look_ns <= now_ns:
                executor.watch(now_ns)
            executor.decide(now_ns)

    def next_event_ns(self) -> int:
        """When the engine next needs a call of `expire` and `decide` without being told of anything."""
        earliest_ns = NEVER_NS
        for lane in self.lanes:
            earliest_ns = min(earliest_ns, lane.next_deadline_ns)
            earliest_ns = min(earliest_ns, lane.wake_ns)
        for stages in (self.executors, self.tokenizers):
            for stage in stages:
                earliest_ns = min(earliest_ns, stage.watchdog.look_ns)
        return earliest_ns

    @property
    def is_full(self) -> bool:
        """Whether every executor has all the batches it takes, and many requests: what arrives now is only queued."""
        return self._rows_under_way() > QUIET_ROWS and all(executor.is_full for executor in self.executors)

    def _rows_under_way(self) -> int:
        return sum([lane.gate.rows.taken for lane in self.lanes])

    def is_quiet_until(self, at_ns: int) -> bool:
        """Whether few requests are under way, and what is with an executor is expected back by `at_ns`."""
        if self._rows_under_way() > QUIET_ROWS:
            return False
        return all(not executor.in_flight or executor.free_ns <= at_ns for executor in self.executors)

    # ---------------------------------------------------------------- drain

    def drain(self) -> None:
        """Refuses new requests from here on; those under way go on."""
        self.draining = True
        for lane in self.lanes:
            lane.closed_code = ErrorCode.DRAINING

    def abort(self) -> None:
        """Answers all that is left when the time for draining is over."""
        for lane in self.lanes:
            for slot in lane.slots.live_requests().tolist():
                self.terminal.fail(lane, slot, ErrorCode.CANCELLED_BY_DRAIN)

    @property
    def unanswered(self) -> int:
        """Requests that wait for their answer."""
        return sum(session.inflight for session in self.sessions.by_index if not session.closed)

    # ---------------------------------------------------------------- statistics

    def statistics(self) -> dict[str, Any]:
        """Everything that is counted, as JSON values."""
        stages: list[Stage[Any, Any]] = [*self.executors, *self.tokenizers]
        now_ns = self.clock.now_ns()
        return {
            "uptime_s": (now_ns - self.started_ns) / 1e9,
            "draining": self.draining,
            "sessions": sum(not session.closed for session in self.sessions.by_index),
            "queued_nbytes": self.byte_permits.taken,
            "models": [lane_statistics(lane, now_ns) for lane in self.served],
            "tenants": self.tenants.active,
            "process": {"pid": os.getpid(), "rss_nbytes": resident_nbytes(os.getpid())},
            "workers": [_worker_statistics(stage, now_ns) for stage in stages],
        }


def _worker_statistics(stage: Stage[Any, Any], now_ns: int) -> dict[str, Any]:
    return {
        "starts": stage.starts,
        "ready": stage.link is not None,
        "in_flight": stage.in_flight,
        "models": [lane.config.name for lane in stage.lanes],
        **stage.health.snapshot(now_ns),
    }


def _quota(config: QuotaConfig) -> Quota:
    return Quota(config.requests_per_s, config.burst or max(1, int(config.requests_per_s)))


def _backlog_ns(lane: Lane) -> float:
    """How long what is queued or announced will run, and one full batch more."""
    scheduler = lane.scheduler
    batches = 1 + (lane.queue.rows + lane.announced_rows) // scheduler.full_rows
    return batches * scheduler.full_rows * scheduler.row_ns
