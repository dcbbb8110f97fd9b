"""Models that are given text: from the bytes of a request to token rows that are ready to run.

The texts of a turn are copied into the text region and go to the tokenizer's process in one descriptor, however
many requests they belong to. The token ids come back in the slots' token rows; what crosses is their lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from trioserve_protocol import ErrorCode, RemoteProtocolError, check_bytes_tensor

from trioserve.batching import LengthQueue
from trioserve.execution import StageBatch
from trioserve.memory import FULL, BumpRegion

from ._lane import Lane
from ._stage import Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from trioserve_protocol import Infer, InferMany, InferRun, Signature

    from trioserve.admission import Gate
    from trioserve.config import ModelConfig
    from trioserve.execution import StageLink, StageResult
    from trioserve.memory import Slab

    from ._session import Session

BURST_ROWS: Final = 256
"""Most texts in one descriptor: about 6 ms of tokenizing, so that an urgent text is not behind a long burst."""

TEXT_BLOCKS: Final = 64
MIN_TEXT_BLOCK_NBYTES: Final = 65_536


def text_region_nbytes(config: ModelConfig) -> tuple[int, int]:
    """Size of a model's text region and of its blocks, bytes."""
    block = -(-max(MIN_TEXT_BLOCK_NBYTES, config.max_text_nbytes) // 4096) * 4096
    return TEXT_BLOCKS * block, block


class TextLane(Lane):
    """A lane whose rows pass a tokenizer before they are queued."""

    def __init__(self, config: ModelConfig, signature: Signature, slab: Slab, gate: Gate) -> None:
        slots = slab.layout.slots
        self.lengths: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        """Tokens of each row."""
        super().__init__(config, signature, slab, gate)
        nbytes, block = text_region_nbytes(config)
        self.texts: Final = BumpRegion(nbytes, block)
        self.text_offsets: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        self.text_nbytes: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        self.untokenized: dict[int, int] = {}
        """First slot -> rows of the requests that the tokenizer has not been given yet, in order of arrival."""

    def _make_queue(self) -> LengthQueue:
        batching = self.config.batching
        padded = batching.layout == "padded"
        buckets = tuple(batching.buckets) if padded else tuple(batching.buckets[-1:])
        return LengthQueue(buckets, self.lengths, max_tokens=batching.max_tokens, padded=padded)

    def admit(self, session: Session, request: Infer, now_ns: int) -> int:
        """Admits the texts of one request; see `Lane.admit`."""
        return self.admit_rows(session, request, now_ns)

    def admit_run(self, session: Session, run: InferRun, now_ns: int) -> tuple[int, int]:
        """Texts of one length in a run are still texts: none are admitted as columns, the engine offers each alone."""
        raise AssertionError("a run of texts is admitted one by one: this is a bug")

    def admit_rows(self, session: Session, request: Infer, now_ns: int) -> int:
        """Admits the texts of one request and copies them into the text region.

        Raises:
            RemoteProtocolError: the payload is not a BYTES tensor.
        """
        starts, nbytes = self.check_texts(request.payload, request.rows)
        body_nbytes = len(request.payload)
        code = self.reserve(session, request.rows, body_nbytes)
        if code:
            return code
        offsets = self._take_room(nbytes.tolist())
        first = FULL if offsets is None else self.enter(session, request, request.rows, body_nbytes, now_ns)
        if offsets is None or first == FULL:
            self.gate.release(request.rows, body_nbytes)
            for offset in offsets or ():
                self.texts.free(offset)
            return ErrorCode.SHED
        region = self.slab.text
        for offset, start, length in zip(offsets, starts.tolist(), nbytes.tolist(), strict=True):
            region[offset : offset + length] = request.payload[start : start + length]
        self.text_offsets[first : first + request.rows] = offsets
        self.text_nbytes[first : first + request.rows] = nbytes
        self.untokenized[first] = request.rows
        self.announced_rows += request.rows
        return 0

    def check_texts(
        self, payload: memoryview, rows: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Offsets and lengths of the texts of a payload.

        Raises:
            RemoteProtocolError: it is malformed, or a text is longer than the model allows.
        """
        offsets, nbytes = check_bytes_tensor(payload, rows)
        longest = int(nbytes.max())
        if longest > self.config.max_text_nbytes:
            raise RemoteProtocolError(
                ErrorCode.INVALID_BYTES,
                f"text: expected at most {self.config.max_text_nbytes} bytes, got {longest}",
            )
        return offsets, nbytes

    def _take_room(self, nbytes: list[int]) -> list[int] | None:
        """Offsets in the text region for texts of these lengths; None, and nothing kept, if they do not all fit."""
        offsets: list[int] = []
        for length in nbytes:
            offset = self.texts.take(length)
            if offset == FULL:
                for taken in offsets:
                    self.texts.free(taken)
                return None
            offsets.append(offset)
        return offsets

    def free_texts(self, first: int, count: int) -> None:
        """Gives the text region's share of a range back."""
        for offset in self.text_offsets[first : first + count].tolist():
            self.texts.free(offset)

    def withdraw(self, first: int, rows: int) -> None:
        """See `Lane.withdraw`; the request may not have been tokenized yet."""
        if self.untokenized.pop(first, None) is None:
            super().withdraw(first, rows)
        else:
            self.free_texts(first, rows)
            self.announced_rows -= rows

    def lengths_of(self, ranges: list[tuple[int, int]]) -> NDArray[np.uint32] | None:
        """Tokens of each row of a batch."""
        return np.concatenate([self.lengths[first : first + count] for first, count in ranges])


class _Burst(NamedTuple):
    """Texts that are with the tokenizer."""

    lane: TextLane
    ranges: list[tuple[int, int]]
    sent_ns: int


class Tokenizer(Stage[TextLane, _Burst]):
    """The stage that turns texts into tokens."""

    def decide(self, now_ns: int) -> None:
        """Sends what has come in, in bursts, while the worker has room for them."""
        link = self.link
        for lane in self.lanes:
            while link is not None and link is self.link and lane.untokenized and link.in_flight < link.depth:
                self._send_burst(link, lane, now_ns)

    def _send_burst(self, link: StageLink, lane: TextLane, now_ns: int) -> None:
        ranges: list[tuple[int, int]] = []
        total = 0
        for first, rows in lane.untokenized.items():
            if ranges and total + rows > BURST_ROWS:
                break
            ranges.append((first, rows))
            total += rows
        for first, _ in ranges:
            del lane.untokenized[first]
        self._sequence += 1
        slots = np.concatenate([np.arange(first, first + rows) for first, rows in ranges])
        self._send(
            link,
            _Burst(lane, ranges, now_ns),
            StageBatch(
                self.lanes.index(lane),
                self._sequence,
                tuple(ranges),
                lane.text_nbytes[slots],
                lane.text_offsets[slots],
            ),
        )

    def _complete(self, work: _Burst, result: StageResult, now_ns: int) -> None:
        lane = work.lane
        lane.observe_arrival(now_ns - work.sent_ns)
        failures = {position: (code, message) for position, code, message in result.failures}
        position = 0
        for first, count in work.ranges:
            failed = next((failures[row] for row in range(position, position + count) if row in failures), None)
            if result.code:
                failed = result.code, result.message
            if result.lengths is not None:
                lane.lengths[first : first + count] = result.lengths[position : position + count]
            position += count
            self._take_back(lane, first, count, failed)
            lane.slots.tokenizeds_ns[first : first + count] = result.finished_ns
            lane.slots.readies_ns[first : first + count] = now_ns

    def _take_back(self, lane: TextLane, first: int, count: int, failed: tuple[int, str] | None) -> None:
        """One request is tokenized: it fails, is dead already, or is ready to run."""
        lane.free_texts(first, count)
        lane.announced_rows -= count
        if failed is not None:
            self._terminal.fail(lane, first, *failed)
        live = lane.slots.is_live(first)
        self._terminal.let_go(lane, first, count)
        if live:
            lane.queue.push(first, count)

    def _release(self, work: _Burst) -> None:
        for first, count in work.ranges:
            work.lane.free_texts(first, count)
            work.lane.announced_rows -= count
        super()._release(work)
