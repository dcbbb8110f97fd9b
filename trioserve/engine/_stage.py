"""The engine's side of a worker process: its link, the work that is with it, and what becomes of that if it dies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from trioserve.errors import WorkerLost
from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode

from ._health import WorkerHealth
from ._watchdog import Watchdog, limit_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trioserve.execution import StageBatch, StageResult

    from ._lane import Lane
    from ._terminal import Terminal

log = structlog.get_logger(__name__)

L = TypeVar("L", bound="Lane")


class Link(Protocol):
    """What a stage needs of a worker's link; see `trioserve.execution.StageLink`."""

    @property
    def depth(self) -> int:
        """Batches that may be unfinished at a time."""
        ...

    @property
    def in_flight(self) -> int:
        """Batches sent whose result has not been received."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether all that the worker has sent could be read."""
        ...

    def fileno(self) -> int:
        """The descriptor to poll."""
        ...

    def send_nowait(self, batch: StageBatch) -> None:
        """Hands a batch over; raises WorkerLost if the worker is gone."""
        ...

    def abandon(self, seq: int) -> None:
        """Tells the worker that nobody waits for a batch any more; its result still comes."""
        ...

    def kill(self, why: str) -> None:
        """Ends the worker at once."""
        ...

    def receive_nowait(self) -> StageResult | None:
        """The next result, None if there is none; raises WorkerLost if the worker is gone."""
        ...

    def close(self) -> None:
        """Closes the link."""
        ...


class Work(Protocol):
    """Rows that are with a worker."""

    @property
    def lane(self) -> Lane:
        """Their model."""
        ...

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """(first slot, count) in service order."""
        ...

    @property
    def rows(self) -> int:
        """How many."""
        ...

    @property
    def cut_ns(self) -> int:
        """When they were handed over."""
        ...

    @property
    def expected_ns(self) -> float:
        """How long they are expected to take; 0 if that is not known."""
        ...


W = TypeVar("W", bound=Work)


class _Lost(NamedTuple, Generic[W]):
    """A worker that is gone, and whose process is not reaped yet."""

    link: Link
    work: list[W]
    """What it had; its slots are held."""
    died_of: W | None
    """What it ran."""


class Stage(ABC, Generic[L, W]):
    """One worker and the rows it has. Rows are bound late: what is more than the worker's depth stays queued here.

    Args:
        lanes: the models it serves, in the worker's order.
        terminal: answers requests.
    """

    def __init__(self, lanes: list[L], terminal: Terminal) -> None:
        self.lanes: Final = list(lanes)
        self.number_of: Final = {lane: number for number, lane in enumerate(lanes)}
        """What the worker calls them."""
        self.held = False
        """Whether the worker gets nothing more for now, because another one is to take its place."""
        self.link: Link | None = None
        self.on_detach: Callable[[int], None] | None = None
        """Told the descriptor of a link that is about to be closed, so that nobody polls it any more."""
        self._fd = -1
        self.starts = 0
        """Workers that have become ready so far."""
        self._terminal: Final = terminal
        self._with_worker: dict[int, W] = {}
        self._lost: list[_Lost[W]] = []
        """What workers had whose processes are not gone yet, oldest first."""
        self._sequence = 0
        self.health: Final = WorkerHealth(lanes[0].clock.now_ns() if lanes else 0)
        self.watchdog: Final = Watchdog(min([_least_ns(lane) for lane in lanes], default=0))

    @abstractmethod
    def decide(self, now_ns: int) -> None:
        """Sends the worker whatever it should have now; called by whoever caused an event."""

    @abstractmethod
    def _complete(self, work: W, result: StageResult, now_ns: int) -> None:
        """Takes finished work back: its rows are held until this lets them go."""

    def _died(self, running: W, *, killed: bool) -> None:
        """The worker was lost while it ran this; its rows are still held.

        Args:
            running: what it ran.
            killed: whether somebody from outside killed it.
        """

    def _give_up(self, work: W) -> None:
        """The worker was lost with this work; its rows are held until `_release`."""

    @abstractmethod
    def _put_back(self, work: W) -> None:
        """The worker was lost before it began this: lets go of its rows, and enters those again that are wanted."""

    def _may_wait(self, lane: Lane, first: int) -> bool:
        """Whether a request has time enough for another worker."""
        del lane, first
        return True

    def _stranded(self, lane: L) -> list[int]:
        """First slots of the requests that cannot be served without a worker of this kind."""
        return list(map(int, lane.slots.live_requests()))

    def _release(self, work: W) -> None:
        """Lets go of the rows of work whose worker is dead and reaped."""
        for first, count in work.ranges:
            self._terminal.let_go(work.lane, first, count)

    @property
    def in_flight(self) -> int:
        """Batches that are with the worker."""
        return len(self._with_worker)

    @property
    def is_clear(self) -> bool:
        """Whether no row is with the worker, nor with one that is dead and not reaped."""
        return not (self._with_worker or self._lost)

    def part_with(self, lanes: Collection[Lane]) -> None:
        """Another worker serves some models from here on; nothing of theirs is with this one."""
        self.lanes[:] = [lane for lane in self.lanes if lane not in lanes]

    def attach(self, link: Link) -> None:
        """A worker has become ready, and takes the place of one that is lost; that one need not be reaped yet."""
        self.link = link
        self._fd = link.fileno()
        self.starts += 1
        self.health.turn("ready", self._now_ns())
        for lane in self.lanes:
            self.open(lane)

    def _now_ns(self) -> int:
        return self.lanes[0].clock.now_ns() if self.lanes else 0

    def close(self, lane: Lane, retry_ns: int) -> None:
        """The worker cannot serve a model: it is refused.

        Args:
            lane: the model.
            retry_ns: when the worker is tried again; `NEVER_NS` if it is not.
        """
        lane.closed_by[self] = retry_ns
        if lane.closed_code in {ErrorCode.OK, ErrorCode.LOADING}:
            lane.closed_code = ErrorCode.UNAVAILABLE

    def open(self, lane: Lane) -> None:
        """The worker can serve a model; if another one that it needs cannot, it stays closed."""
        lane.closed_by.pop(self, None)
        if lane.closed_code is ErrorCode.UNAVAILABLE and not lane.closed_by:
            lane.closed_code = ErrorCode.OK

    def _send(self, link: Link, work: W, batch: StageBatch) -> None:
        """Hands rows over; the batch holds them from here on. The caller has seen that the gate is open."""
        slots = work.lane.slots
        for first, count in work.ranges:
            slots.hold_for_batch(first, count)
        self._with_worker[batch.seq] = work
        if len(self._with_worker) == 1:
            self.watchdog.begins(work.cut_ns)
        try:
            link.send_nowait(batch)
        except WorkerLost as error:
            self.lose(error.message, unsent=work, is_over=True)

    def collect(self, now_ns: int) -> None:
        """Takes all finished work off the link. Also notices the loss of a worker that had nothing to do."""
        while (link := self.link) is not None:
            try:
                result = link.receive_nowait()
            except WorkerLost as error:
                self.lose(error.message, is_over=True)
                return
            if result is None:
                return
            self._complete(self._with_worker.pop(result.seq), result, now_ns)
            if not self._with_worker:
                return
            self.watchdog.begins(now_ns)

    def watch(self, now_ns: int) -> None:
        """Ends a worker that has had its oldest work for too long; called when `watchdog.look_ns` has come."""
        self.collect(now_ns)
        link, work = self.link, next(iter(self._with_worker.values()), None)
        if link is None or work is None:
            self.watchdog.rest()
            return
        longest_ns = limit_ns(_least_ns(work.lane), work.expected_ns)
        took_ns = self.watchdog.overdue_ns(longest_ns, now_ns)
        if took_ns:
            log.error(
                "worker_hung",
                model=work.lane.config.name,
                rows=work.rows,
                for_s=round(took_ns / 1e9, 3),
                limit_s=round(longest_ns / 1e9, 3),
                expected_s=round(work.expected_ns / 1e9, 3),
            )
            link.kill(f"it had a batch of {work.lane.config.name} for {took_ns / 1e9:.1f} s")
            self.lose("the worker did not answer")

    def _collect_last(self, link: Link) -> None:
        """Takes what a dead worker had finished: what is then the oldest is what it died of."""
        with suppress(WorkerLost):
            while (result := link.receive_nowait()) is not None:
                self._complete(self._with_worker.pop(result.seq), result, result.finished_ns)

    def lose(self, reason: str, unsent: W | None = None, *, is_over: bool = False) -> None:
        """The worker is gone: what it may have begun is answered now, and what it has not begun is queued again.

        The slots of the former return in `reaped`, since a dying process may still write to them. A worker begins a
        batch when it has sent the result of the one before, and what it had sent is read here: only the oldest without
        a result can have been begun. That holds for an end that is closed; a worker that is alive, or that sent what
        nobody can read, may have begun any.

        Args:
            reason: for the clients.
            unsent: what it was not given any more.
            is_over: whether the worker takes no further batch off its end.
        """
        link, self.link = self.link, None
        if link is None:
            return
        self._collect_last(link)
        is_over = is_over and link.is_sound
        if self.on_detach is not None:
            self.on_detach(self._fd)
        link.close()
        lost, self._with_worker = list(self._with_worker.values()), {}
        died_of = None
        if lost and lost[0] is not unsent:
            died_of = lost[0]
        grave = _Lost(link, [], died_of)
        self._lost.append(grave)
        self.health.turn("restarting", self._now_ns())
        for work in lost:
            self._give_up(work)
            if is_over and work is not died_of:
                self._fail_hasty(work, reason)
                self._put_back(work)
            else:
                grave.work.append(work)
                self._terminal.fail_ranges(work.lane, work.ranges, ErrorCode.WORKER_LOST, reason)

    def _fail_hasty(self, work: W, reason: str) -> None:
        """Answers those who cannot wait for another worker."""
        for first, count in work.ranges:
            for slot in work.lane.slots.live_in(first, count).tolist():
                if not self._may_wait(work.lane, slot):
                    self._terminal.fail(work.lane, slot, ErrorCode.WORKER_LOST, reason)

    def reaped(
        self,
        link: Link | None = None,
        *,
        restarting: bool,
        killed: bool = False,
        retry_ns: int = NEVER_NS,
    ) -> None:
        """A process has ended: nothing can touch its slots any more.

        Args:
            link: which worker's it was; None for that of every worker so far.
            restarting: whether another one is being started, or has taken its place. If not, `fail` follows.
            killed: whether somebody from outside ended it.
            retry_ns: when the next one is tried.
        """
        if link is None or link is self.link:
            self.lose("the worker process ended", is_over=True)
        gone = [lost for lost in self._lost if link is None or lost.link is link]
        self._lost = [lost for lost in self._lost if lost.link is not link] if link is not None else []
        for lost in gone:
            if lost.died_of is not None:
                self._died(lost.died_of, killed=killed)
            for work in lost.work:
                self._release(work)
        if not restarting:
            self.fail(retry_ns)

    def fail(self, retry_ns: int) -> None:
        """Its workers die again and again: the models are closed until one is ready, and what waits for it is answered.

        Args:
            retry_ns: when the next one is tried; `NEVER_NS` if none is.
        """
        if self.link is not None:
            return  # it was tried and is there already: this comes late from one that was hard to end
        self.health.turn("failed", self._now_ns())
        for lane in self.lanes:
            self.close(lane, retry_ns)
            for slot in self._stranded(lane):
                self._terminal.fail(lane, slot, ErrorCode.UNAVAILABLE, "its worker dies again and again")


def _least_ns(lane: Lane) -> int:
    """The shortest time after which a worker counts as hung."""
    return int(lane.config.watchdog_s * 1e9)
