"""Models that are given text: from the bytes of a request to token rows that are ready to run.

The texts of a turn are copied into the text region and go to the tokenizer's process in one descriptor, however
many requests they belong to. The token ids come back in the slots' token rows; what crosses is their lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trioserve.batching import LengthQueue
from trioserve.execution import StageBatch
from trioserve.memory import FULL, BumpRegion
from trioserve_protocol import ErrorCode, Infer, RemoteProtocolError, check_bytes_tensor, parse_request_meta

from ._lane import MANY, OK, Lane
from ._stage import Stage
from ._terminal import known

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trioserve.admission import Gate
    from trioserve.config import ModelConfig
    from trioserve.execution import StageLink, StageResult
    from trioserve.memory import Slab
    from trioserve.request import Clock
    from trioserve_protocol import InferMany, InferRun, Signature

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

    def __init__(
        self, config: ModelConfig, signature: Signature, slab: Slab, gate: Gate, clock: Clock
    ) -> None:
        slots = slab.layout.slots
        self.lengths: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        """Tokens of each row."""
        super().__init__(config, signature, slab, gate, clock)
        nbytes, block = text_region_nbytes(config)
        self.plain_frame_nbytes = 0
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

    def admit(self, session: Session, request: Infer, now_ns: int) -> ErrorCode:
        """Admits the texts of one request; see `Lane.admit`."""
        return self.admit_rows(session, request, now_ns)

    def admit_run(self, session: Session, run: InferRun, now_ns: int) -> tuple[int, ErrorCode]:
        """Texts of one length in a run are still texts: none are admitted as columns, the engine offers each alone."""
        raise AssertionError("a run of texts is admitted one by one: this is a bug")

    def admit_rows(self, session: Session, request: Infer, now_ns: int) -> ErrorCode:
        """Admits the texts of one request and copies them into the text region.

        Raises:
            RemoteProtocolError: the payload is not a BYTES tensor.
        """
        starts, nbytes = self._check_texts(request)
        body_nbytes = len(request.payload)
        code = self.reserve(session, request.rows, body_nbytes)
        if code:
            return code
        placed = self._place(session, request, starts.tolist(), nbytes.tolist(), body_nbytes, now_ns)
        return OK if placed else ErrorCode.SHED

    def admit_texts(self, session: Session, request: InferMany, now_ns: int) -> tuple[int, ErrorCode]:
        """Admits the front of an INFER_MANY of texts, each as a request of its own.

        Returns:
            How many were admitted, and why the others were not (OK if all were).

        Raises:
            RemoteProtocolError: the payload is not a BYTES tensor; then none is admitted.
        """
        starts, nbytes = self._check_texts(request)
        self.frame_serial = (self.frame_serial + 1) & 0xFFFF_FFFF
        for row, (start, length) in enumerate(zip(starts.tolist(), nbytes.tolist(), strict=True)):
            code = self.reserve(session, 1, length)
            if code:
                return row, code
            one = Infer(
                request.rid + row, request.handle, request.flags, request.timeout_us, 1, b"", request.payload
            )
            if not self._place(session, one, [start], [length], length, now_ns, mark=MANY):
                return row, ErrorCode.SHED
        return request.rows, OK

    def _place(
        self,
        session: Session,
        request: Infer,
        starts: list[int],
        nbytes: list[int],
        body_nbytes: int,
        now_ns: int,
        mark: int = 0,
    ) -> bool:
        """Gives a request whose permits are taken its slots and its share of the text region; False if there is no
        room, then the permits are back.
        """
        rows = len(starts)
        offsets = self._take_room(nbytes)
        first = FULL
        if offsets is not None:
            first = self.enter(session, request, rows, body_nbytes, now_ns, mark)
        if offsets is None or first == FULL:
            self.gate.release(rows, body_nbytes)
            for offset in offsets or ():
                self.texts.free(offset)
            return False
        region = self.slab.text
        for offset, start, length in zip(offsets, starts, nbytes, strict=True):
            region[offset : offset + length] = request.payload[start : start + length]
        self.text_offsets[first : first + rows] = offsets
        self.text_nbytes[first : first + rows] = nbytes
        self.slots.frame[first] = self.frame_serial
        self.untokenized[first] = rows
        self.announced_rows += rows
        return True

    def _check_texts(self, request: Infer | InferMany) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Offsets and lengths of the texts of a payload."""
        fast = False
        if request.meta:
            declared = parse_request_meta(request.meta, bound=bool(request.handle)).tensors
            fast = bool(declared) and declared[0].fast
        starts, nbytes, _ = check_bytes_tensor(request.payload, request.rows, fast=fast)
        longest = int(nbytes.max())
        if longest > self.config.max_text_nbytes:
            raise RemoteProtocolError(
                ErrorCode.INVALID_BYTES,
                f"text: expected at most {self.config.max_text_nbytes} bytes, got {longest}",
            )
        return starts, nbytes

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

    def after_cut(self, ranges: list[tuple[int, int]]) -> None:
        """Does nothing: token rows are laid out anew for every batch, so a sealed block would only waste its rest.
        With batches of 7 rows, blocks of 32 that hold 7 each run out at 224 requests.
        """

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
        failures = {position: (known(code), message) for position, code, message in result.failures}
        position = 0
        for first, count in work.ranges:
            failed = next(
                (failures[row] for row in range(position, position + count) if row in failures), None
            )
            if result.code:
                failed = known(result.code), result.message
            if result.lengths is not None:
                lane.lengths[first : first + count] = result.lengths[position : position + count]
            position += count
            self._take_back(lane, first, count, failed)
            lane.slots.tokenizeds_ns[first : first + count] = result.finished_ns
            lane.slots.readies_ns[first : first + count] = now_ns

    def _take_back(
        self, lane: TextLane, first: int, count: int, failed: tuple[ErrorCode, str] | None
    ) -> None:
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
