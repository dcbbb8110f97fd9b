"""The stage that turns texts into tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trioserve.execution import StageBatch
from trioserve_protocol import ErrorCode

from ._stage import Link, Stage
from ._terminal import failed_requests, known
from ._text import TextLane

if TYPE_CHECKING:
    from trioserve.execution import StageResult

    from ._batch import Range

BURST_ROWS: Final = 32
"""Most texts in one descriptor: about 1 ms of tokenizing. After it an idle executor has its first batch, and an urgent
text is not behind a long burst. In bursts of 256 texts MiniLM was served at .88 of direct calls, of 32 at .92."""


class Burst:
    """Texts that are with the tokenizer.

    Args:
        lane: their model.
        ranges: their slots, one range a request.
    """

    __slots__ = ("lane", "ranges", "rows")

    def __init__(self, lane: TextLane, ranges: list[Range]) -> None:
        self.lane = lane
        self.ranges = ranges
        self.rows = sum(count for _, count in ranges)


class Tokenizer(Stage[TextLane, Burst]):
    """The engine's side of the tokenizer's process."""

    def decide(self, now_ns: int) -> None:
        """Sends what has come in, in bursts, while the worker has room for them."""
        link = self.link
        for lane in self.lanes:
            while link is not None and link is self.link and lane.untokenized and link.in_flight < link.depth:
                self._send_burst(link, lane, now_ns)

    def _send_burst(self, link: Link, lane: TextLane, now_ns: int) -> None:
        ranges: list[Range] = []
        total = 0
        for first, rows in lane.untokenized.items():
            if ranges and total + rows > BURST_ROWS:
                break
            ranges.append((first, rows))
            total += rows
        for first, _ in ranges:
            del lane.untokenized[first]
        self._sequence += 1
        burst = Burst(lane, ranges)
        slots = [slot for first, rows in ranges for slot in range(first, first + rows)]
        nbytes, offsets = lane.text_nbytes[slots], lane.text_offsets[slots]
        lane.under_way[burst] = now_ns
        batch = StageBatch(self.lanes.index(lane), self._sequence, tuple(ranges), nbytes, offsets)
        self._send(link, burst, batch)

    def _complete(self, work: Burst, result: StageResult, now_ns: int) -> None:
        lane, slots, lengths = work.lane, work.lane.slots, result.lengths
        lane.came_in(work, now_ns)
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
