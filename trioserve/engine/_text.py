"""Models that are given text: from the bytes of a request to token rows that are ready to run.

The texts of a turn are copied into the text region and go to the tokenizer's process in one descriptor, however
many requests they belong to. The token ids come back in the slots' token rows; what crosses is their lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve.batching import LengthQueue
from trioserve.memory import FULL, BumpRegion
from trioserve_protocol import ErrorCode, RemoteProtocolError, check_bytes_tensor, pad8, parse_request_meta

from ._bulk import lease_many
from ._lane import MEAN_GAIN, OK, Lane
from ._untokenized import Untokenized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trioserve.admission import Account, Gate, Tenants
    from trioserve.config import ModelConfig
    from trioserve.memory import Slab
    from trioserve.request import Clock
    from trioserve_protocol import Infer, InferBegin, InferMany, Signature

    from ._arrival import Arrival
    from ._batch import Range
    from ._quarantine import TextQuarantine
    from ._session import Session

TEXT_BLOCKS: Final = 64
USUAL_TOKENS: Final = 16
"""Of a text while none has been seen: a question of ten words."""

MIN_TEXT_BLOCK_NBYTES: Final = 65_536

Texts = tuple[list[int], list[int]]
"""Where the texts of a payload start, and how long each is, bytes."""


def text_region_nbytes(config: ModelConfig) -> tuple[int, int]:
    """Size of a model's text region and of its blocks, bytes."""
    block = -(-max(MIN_TEXT_BLOCK_NBYTES, config.max_text_nbytes) // 4096) * 4096
    return TEXT_BLOCKS * block, block


class TextLane(Lane):
    """A lane whose rows pass a tokenizer before they are queued."""

    unit = "token"
    queue: LengthQueue

    text_quarantine: TextQuarantine
    """What is known of texts that kill tokenizers; set by the engine."""

    def __init__(
        self,
        config: ModelConfig,
        signature: Signature,
        slab: Slab,
        gate: Gate,
        clock: Clock,
        tenants: Tenants | None = None,
    ) -> None:
        slots = slab.layout.slots
        self.lengths: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        """Tokens of each row."""
        super().__init__(config, signature, slab, gate, clock, tenants)
        nbytes, block = text_region_nbytes(config)
        self.plain_frame_nbytes = 0
        self.scheduler.units_per_row = float(min(USUAL_TOKENS, config.batching.buckets[0]))
        self.scheduler.refresh()
        self.texts: Final = BumpRegion(nbytes, block)
        self.text_offsets: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        self.text_nbytes: NDArray[np.uint32] = np.zeros(slots, np.uint32)
        self.untokenized: Final = Untokenized()
        """Requests that the tokenizer has not been given yet."""

    def _make_queue(self) -> LengthQueue:
        batching = self.config.batching
        padded = batching.layout == "padded"
        buckets = tuple(batching.buckets) if padded else tuple(batching.buckets[-1:])
        return LengthQueue(
            buckets,
            self.lengths,
            block_rows=self.max_rows,
            max_tokens=batching.max_tokens,
            padded=padded,
        )

    # ---------------------------------------------------------------- admission

    def admit(self, session: Session, account: Account, request: Infer, now_ns: int) -> ErrorCode:
        """Admits the texts of one request; see `Lane.admit`."""
        return self.admit_rows(session, account, request, now_ns)

    def admit_rows(self, session: Session, account: Account, request: Infer, now_ns: int) -> ErrorCode:
        """Admits the texts of one request and copies them into the text region.

        Raises:
            RemoteProtocolError: the payload is not a BYTES tensor.
        """
        rows, body_nbytes = request.rows, len(request.payload)
        if rows > self.max_rows:
            return ErrorCode.TOO_MANY_ROWS
        texts = self._texts_of(request, request.payload)
        offsets = self._take_room(texts[1])
        first, code = FULL, ErrorCode.SHED
        if len(offsets) == rows:
            first, code = self.enter(session, account, request, rows, body_nbytes, now_ns)
        if code:
            self._give_room_back(offsets)
            return self.refusal(session, 1, body_nbytes, rows) or code
        self._place(first, request.payload, texts, offsets)
        self.enqueue(first, rows)
        return OK

    def admit_texts(
        self, session: Session, account: Account, request: InferMany, now_ns: int, *, most: int = 65_535
    ) -> tuple[int, ErrorCode]:
        """Admits the front of an INFER_MANY of texts, each as a request of its own.

        Returns:
            How many were admitted, and why the others were not (OK if all were).

        Raises:
            RemoteProtocolError: the payload is not a BYTES tensor; then none is admitted.
        """
        payload = request.payload
        starts, nbytes = self._texts_of(request, payload)
        offsets = self._take_room(nbytes)
        most = min(most, len(offsets))
        ranges, code = lease_many(self, session, account, request, len(payload), now_ns, most=most)
        done = 0
        for first, count in ranges:
            part = slice(done, done + count)
            self._place(first, payload, (starts[part], nbytes[part]), offsets[part])
            self.enqueue(first, count)
            done += count
        self._give_room_back(offsets[done:])
        return done, code

    def _texts_of(self, request: Infer | InferMany | InferBegin, payload: memoryview) -> Texts:
        """Finds the texts of a payload and checks their lengths."""
        declared = parse_request_meta(request.meta, bound=bool(request.handle)).tensors
        fast = bool(declared) and declared[0].fast
        starts, nbytes, used = check_bytes_tensor(payload, request.rows, fast=fast)
        if pad8(used) != len(payload):
            message = f"payload: expected {pad8(used)} bytes for these texts, got {len(payload)}"
            raise RemoteProtocolError(ErrorCode.INVALID_SIZE, message)
        longest = int(nbytes.max())
        if longest > self.config.max_text_nbytes:
            message = f"text: expected at most {self.config.max_text_nbytes} bytes, got {longest}"
            raise RemoteProtocolError(ErrorCode.INVALID_BYTES, message)
        return starts.tolist(), nbytes.tolist()

    def max_payload_nbytes(self, rows: int) -> int:
        """No payload of so many texts is larger."""
        return pad8(rows * (self.config.max_text_nbytes + 4) + 4)

    # ---------------------------------------------------------------- the text region

    def _take_room(self, nbytes: list[int]) -> list[int]:
        """Offsets in the text region for texts of these lengths, from the front as many as fit."""
        offsets: list[int] = []
        for length in nbytes:
            offset = self.texts.take(length)
            if offset == FULL:
                break
            offsets.append(offset)
        return offsets

    def _give_room_back(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self.texts.free(offset)

    def _place(self, first: int, payload: memoryview, texts: Texts, offsets: list[int]) -> None:
        """Copies texts to where there is room for them, one a slot from `first` on."""
        region = self.slab.text
        for start, length, offset in zip(*texts, offsets, strict=True):
            region[offset : offset + length] = payload[start : start + length]
        self.text_offsets[first : first + len(offsets)] = offsets
        self.text_nbytes[first : first + len(offsets)] = texts[1]

    def free_texts(self, first: int, count: int) -> None:
        """Gives the text region's share of a range back."""
        self._give_room_back(self.text_offsets[first : first + count].tolist())

    # ---------------------------------------------------------------- large bodies

    def destinations(self, request: InferBegin, ranges: Sequence[Range]) -> list[memoryview]:
        """One piece of memory: where its texts go shows only when all of them are there."""
        del ranges
        return [memoryview(bytearray(request.payload_nbytes))]

    def complete(self, arrival: Arrival, now_ns: int) -> dict[int, tuple[ErrorCode, str]]:
        """See `Lane.complete`."""
        del now_ns
        request, [payload] = arrival.request, arrival.parts
        try:
            starts, nbytes = self._texts_of(request, payload)
        except RemoteProtocolError as error:
            return {first: (error.code, error.message) for first, _ in arrival.requests}
        unusable: dict[int, tuple[ErrorCode, str]] = {}
        row = 0
        for first, rows in arrival.requests:
            part = slice(row, row + rows)
            row += rows
            if not self.slots.is_live(first):
                continue
            offsets = self._take_room(nbytes[part])
            if len(offsets) == rows:
                self._place(first, payload, (starts[part], nbytes[part]), offsets)
            else:
                self._give_room_back(offsets)
                unusable[first] = ErrorCode.SHED, ""
        return unusable

    # ---------------------------------------------------------------- the queues

    def enqueue(self, first: int, count: int) -> None:
        """Enters the unanswered requests of a range for the tokenizer."""
        slots = self.slots
        for slot in slots.live_in(first, count).tolist():
            self.untokenized.push(slot, slots.rows[slot], slots.deadline_ns[slot] + self.offset_of(slot))
            self.announced_rows += slots.rows[slot]

    def enqueue_tokens(self, first: int, count: int) -> None:
        """Enters the unanswered requests of a range, whose token rows are ready to run."""
        for slot in self.slots.live_in(first, count).tolist():
            self.queue.push(slot, self.slots.rows[slot], self.slots.deadline_ns[slot], self.offset_of(slot))

    def withdraw(self, first: int, rows: int) -> None:
        """See `Lane.withdraw`; the request may not have been tokenized yet."""
        if self.untokenized.remove(first):
            self.free_texts(first, rows)
            self.announced_rows -= rows
        else:
            super().withdraw(first, rows)

    def is_running(self, first: int) -> bool:
        """See `Lane.is_running`; the tokenizer executes nothing."""
        return super().is_running(first) and bool(self.slots.tokenized_ns[first])

    def waits_to_run(self, first: int) -> bool:
        """See `Lane.waits_to_run`; the request may not have been tokenized yet."""
        return super().waits_to_run(first) and first not in self.untokenized

    def eta_ns(self, request: Infer | InferMany | InferBegin) -> float:
        """See `Lane.eta_ns`; every text passes the tokenizer."""
        del request
        return self.mean_way_ns

    def after_cut(self, ranges: list[Range]) -> None:
        """Does nothing: token rows are laid out anew for every batch, so a sealed block would only waste its rest.

        With batches of 7 rows, blocks of 32 that hold 7 each run out at 224 requests.
        """

    def measure(self, ranges: list[Range], rows: int) -> tuple[NDArray[np.uint32] | None, int]:
        """See `Lane.measure`; the units are tokens, padding included. Learns how many of them a row usually has."""
        batching = self.config.batching
        lengths = np.concatenate([self.lengths[first : first + count] for first, count in ranges])
        tokens = rows * int(lengths.max()) if batching.layout == "padded" else int(lengths.sum())
        self.scheduler.units_per_row += MEAN_GAIN * (tokens / rows - self.scheduler.units_per_row)
        return lengths, tokens
