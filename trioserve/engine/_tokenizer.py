"""The stage that turns texts into tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trioserve.execution import StageBatch
from trioserve_protocol import ErrorCode

from ._lane import MEAN_GAIN
from ._stage import Link, Stage
from ._terminal import failed_requests, known
from ._text import TextLane

if TYPE_CHECKING:
    from trioserve.execution import StageResult

    from ._batch import Range
    from ._terminal import Terminal

BURST_ROWS: Final = 32
"""Most texts in one descriptor: about 1 ms of tokenizing. After it an idle executor has its first batch, and an urgent
text is not behind a long burst. In bursts of 256 texts MiniLM was served at .88 of direct calls, of 32 at .92."""

FULL_ROWS: Final = BURST_ROWS // 2
"""Texts in a burst from which the time of one tells how long a backlog takes."""


NS_PER_BYTE: Final = 1_000
LEAST_NS: Final = 1_000_000
"""What texts are expected to take at most, for the watchdog: tokenizers do 2 to 10 MB a second."""


class Burst:
    """Texts that are with the tokenizer.

    Args:
        lane: their model.
        ranges: their slots, one range a request.
        nbytes: their length.
        cut_ns: when they were handed over.
    """

    __slots__ = ("cut_ns", "expected_ns", "lane", "ranges", "rows", "suspect")

    def __init__(self, lane: TextLane, ranges: list[Range], nbytes: int, cut_ns: int) -> None:
        self.lane = lane
        self.ranges = ranges
        self.rows = sum(count for _, count in ranges)
        self.suspect: bytes | None = None
        """What its only request is known by, if that is suspected of killing tokenizers."""
        self.cut_ns = cut_ns
        self.expected_ns = float(LEAST_NS + nbytes * NS_PER_BYTE)


class Tokenizer(Stage[TextLane, Burst]):
    """The engine's side of the tokenizer's process.

    Args:
        lanes: the models it tokenizes for, in the worker's order.
        terminal: answers requests.
    """

    def __init__(self, lanes: list[TextLane], terminal: Terminal) -> None:
        super().__init__(lanes, terminal)
        self._row_ns = 0.0
        """Time of the worker that a text of a full burst takes; 0 while there was none."""
        for lane in lanes:
            lane.scheduler.upstream_ns = self.backlog_ns

    def decide(self, now_ns: int) -> None:
        """Sends what has come in, the most urgent first, in bursts, while the worker has room for them."""
        link = self.link
        if self.held:
            return
        while link is not None and link is self.link and link.in_flight < link.depth:
            waiting = [lane for lane in self.lanes if lane.untokenized]
            if not waiting:
                return
            self._send_burst(link, min(waiting, key=_head_key_of), now_ns)

    def backlog_ns(self, key_ns: int) -> int:
        """How long the worker takes for what it has not been given yet and goes before a text of such a key."""
        return int(self._row_ns * sum([lane.untokenized.ahead(key_ns) for lane in self.lanes]))

    def _send_burst(self, link: Link, lane: TextLane, now_ns: int) -> None:
        most_rows, suspect = BURST_ROWS, None
        if lane.text_quarantine.is_active:
            most_rows, suspect = lane.text_quarantine.isolate(lane, BURST_ROWS, self._terminal, now_ns)
            if not most_rows:
                return
        ranges = lane.untokenized.take(most_rows)
        self._sequence += 1
        slots = [slot for first, rows in ranges for slot in range(first, first + rows)]
        nbytes, offsets = lane.text_nbytes[slots], lane.text_offsets[slots]
        burst = Burst(lane, ranges, int(nbytes.sum()), now_ns)
        burst.suspect = suspect
        lane.under_way[burst] = now_ns
        batch = StageBatch(self.number_of[lane], self._sequence, tuple(ranges), nbytes, offsets)
        self._send(link, burst, batch)

    def _complete(self, work: Burst, result: StageResult, now_ns: int) -> None:
        lane, slots, lengths = work.lane, work.lane.slots, result.lengths
        lane.came_in(work, now_ns)
        if work.suspect is not None:
            lane.text_quarantine.clear(work.suspect)
        if work.rows >= FULL_ROWS:
            row_ns = (result.finished_ns - result.started_ns) / work.rows
            self._row_ns += MEAN_GAIN * (row_ns - self._row_ns) if self._row_ns else row_ns
        lane.announced_rows -= work.rows
        position = 0
        for first, count in work.ranges:
            if lengths is not None:
                lane.lengths[first : first + count] = lengths[position : position + count]
            slots.tokenizeds_ns[first : first + count] = result.finished_ns
            slots.readies_ns[first : first + count] = now_ns
            position += count
        if result.code or lengths is None:
            code = known(result.code) if result.code else ErrorCode.CORRUPT_IPC
            self._terminal.fail_ranges(lane, work.ranges, code, result.message)
        for slot, (code, message) in failed_requests(lane, work.ranges, result).items():
            self._terminal.fail(lane, slot, code, message)
        self._release(work)
        for first, count in work.ranges:
            lane.enqueue_tokens(first, count)

    def _died(self, running: Burst, *, killed: bool) -> None:
        """The worker was lost while it tokenized this burst."""
        lane = running.lane
        lane.text_quarantine.blame(lane, running.ranges, lane.clock.now_ns(), killed=killed)

    def _put_back(self, work: Burst) -> None:
        """See `Stage._put_back`; their texts are where they were."""
        lane = work.lane
        for first, count in work.ranges:
            if not lane.slots.is_live(first):
                lane.free_texts(first, count)
            self._terminal.let_go(lane, first, count)
            lane.enqueue(first, count)

    def _give_up(self, work: Burst) -> None:
        """The texts are on their way no more."""
        work.lane.under_way.pop(work)
        work.lane.announced_rows -= work.rows

    def _stranded(self, lane: TextLane) -> list[int]:
        """First slots of the requests without tokens; the others can still be run."""
        live = lane.slots.live_requests()
        return [slot for slot in live.tolist() if not lane.slots.tokenized_ns[slot]]

    def _release(self, work: Burst) -> None:
        """The texts have been read, or never will be."""
        for first, count in work.ranges:
            work.lane.free_texts(first, count)
        super()._release(work)


def _head_key_of(lane: TextLane) -> int:
    return lane.untokenized.head_key_ns
