"""Inputs that make a worker's process die: suspected once, then run alone, and refused after a second death.

What was in the batch that ran when a worker died is suspected, by a digest of its payload. A suspect that comes again
is a batch of its own, so that it endangers nobody and its second death is a proof; one that survives is cleared. A
worker that was killed from outside proves less, since that may be chance: then it takes one death more. What was proved
is refused for a while. A table knows digests and no payloads; while it is empty it costs nothing, and while
it is not, one comparison of a few bytes a row tells apart what cannot be meant.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

from trioserve_protocol import ErrorCode, pad8

from ._text import TextLane

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ._batch import Range
    from ._lane import Lane
    from ._terminal import Terminal

log = structlog.get_logger(__name__)

MAX_KNOWN: Final = 1024
"""Suspects, and refused inputs, of one model that are remembered; of more the oldest are forgotten."""

DIGEST_NBYTES: Final = 16
WINDOW_NBYTES: Final = 8
_FACTORS: Final = (0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9)
_MASK: Final = (1 << 64) - 1


class Quarantine:
    """What is known of the inputs of one model.

    Args:
        model: its name, for the log.
        keep_ns: how long a suspicion or a refusal lasts; 0 for neither.
    """

    def __init__(self, model: str, keep_ns: int) -> None:
        self.keep_ns = keep_ns
        self.is_active = False
        """Whether anything is suspected or refused."""
        self.is_refusing = False
        """Whether anything is refused."""
        self.found = 0
        """Inputs that were proved to kill workers, since the model was loaded."""
        self._model: Final = model
        self._suspects: dict[bytes, tuple[int, int]] = {}
        """Digest -> (when it is forgotten, fingerprint), oldest first."""
        self._refused: dict[bytes, tuple[int, int]] = {}
        self._doubted: set[bytes] = set()
        """Suspects that were alone with a worker when it was killed from outside."""
        self._keys = np.zeros(0, np.uint64)
        self._refused_keys: set[int] = set()
        self._may_refuse = np.zeros(0, np.uint64)

    # ---------------------------------------------------------------- what becomes known

    def blame(self, lane: Lane, ranges: Sequence[Range], now_ns: int, *, killed: bool = False) -> None:
        """A worker died while it ran these rows; their payload is still there.

        Args:
            lane: their model.
            ranges: the whole batch, answered requests too.
            now_ns: the time of the event.
            killed: whether somebody from outside killed it.
        """
        if not self.keep_ns:
            return
        requests = list(requests_in(lane, ranges))
        forget_ns = now_ns + self.keep_ns
        for first, rows in requests:
            digest = digest_of(self._parts(lane, first, rows))
            entry = forget_ns, fingerprint(self._parts(lane, first, 1)[0])
            alone = len(requests) == 1 and digest in self._suspects
            if alone and killed and digest not in self._doubted:
                self._doubted.add(digest)
            elif alone:
                del self._suspects[digest]
                _remember(self._refused, digest, entry)
                self.found += 1
                log.error(
                    "input_quarantined", model=self._model, digest=digest.hex(), for_s=self.keep_ns / 1e9
                )
            elif digest not in self._refused:
                _remember(self._suspects, digest, entry)
        log.warning("inputs_suspected", model=self._model, suspects=len(self._suspects))
        self._settle()

    def clear(self, digest: bytes) -> None:
        """A suspect has run alone and its worker lives."""
        if self._suspects.pop(digest, None) is not None:
            self._settle()

    def _forget(self, now_ns: int) -> None:
        """Drops what is too old; the oldest come first."""
        before = len(self._suspects) + len(self._refused)
        for table in (self._suspects, self._refused):
            while table and (oldest := next(iter(table))) and table[oldest][0] <= now_ns:
                del table[oldest]
        if len(self._suspects) + len(self._refused) != before:
            self._settle()

    def _settle(self) -> None:
        self._doubted &= self._suspects.keys()
        self.is_refusing = bool(self._refused)
        self.is_active = self.is_refusing or bool(self._suspects)
        keys = {key for table in (self._suspects, self._refused) for _, key in table.values()}
        self._keys = np.array(sorted(keys), np.uint64)
        self._refused_keys = {key for _, key in self._refused.values()}
        self._may_refuse = np.array(list(self._refused_keys), np.uint64)

    # ---------------------------------------------------------------- admission

    def refuses(self, lane: Lane, payload: memoryview, rows: int, now_ns: int) -> bool:
        """Whether a request is refused; asked while `is_refusing`.

        Texts are looked at when they are cut, as tokens, and so is what may still turn out to have the wrong size.

        Args:
            lane: its model.
            payload: as on the wire.
            rows: of the request.
            now_ns: the time of the event.
        """
        if isinstance(lane, TextLane) or len(payload) != lane.signature.input_nbytes(rows):
            return False
        if fingerprint(payload[: lane.tensors[0][1]]) not in self._refused_keys:
            return False
        self._forget(now_ns)
        return digest_of(_parts_of(lane, payload, rows)) in self._refused

    def may_refuse(self, lane: Lane, payload: NDArray[np.uint8]) -> bool:
        """Whether one of some one-row requests may be refused: none is if it says no. Asked while `is_refusing`.

        Args:
            lane: their model.
            payload: u8[requests, bytes], as on the wire.
        """
        first = payload[:, : lane.tensors[0][1]]
        return bool(np.isin(fingerprints(first), self._may_refuse).any())

    # ---------------------------------------------------------------- the cut

    def isolate(self, lane: Lane, limit: int, terminal: Terminal, now_ns: int) -> tuple[int, bytes | None]:
        """How far the next batch may go, so that a suspect is alone in its own; asked while `is_active`.

        What is refused is answered here, if it came by a way on which nobody looked at it.

        Args:
            lane: the model; its queue is not empty.
            limit: rows that were to be cut.
            terminal: answers requests.
            now_ns: the time of the event.

        Returns:
            Rows to cut, 0 if nothing is left; and the digest of a suspect, which is then all of the batch.
        """
        self._forget(now_ns)
        while ranges := self._next(lane, limit):
            known = self._first_known(lane, ranges)
            if known is None:
                return limit, None
            before, first, digest = known
            if digest not in self._refused:
                return (before, None) if before else (lane.slots.rows[first], digest)
            terminal.fail(lane, first, ErrorCode.POISON_INPUT)
        return 0, None

    def _first_known(self, lane: Lane, ranges: Sequence[Range]) -> tuple[int, int, bytes] | None:
        """(rows before it, first slot, digest) of the first suspected or refused request of some rows."""
        before = 0
        near = self._near(lane, ranges)
        for first, rows in requests_in(lane, ranges):
            if near is None or first in near:
                digest = digest_of(self._parts(lane, first, rows))
                if digest in self._suspects or digest in self._refused:
                    return before, first, digest
            before += rows
        return None

    def _next(self, lane: Lane, limit: int) -> list[Range]:
        """What would be cut; empty if nothing waits."""
        return lane.queue.peek(limit, lane.slots.row_counts) if lane.queue.rows else []

    def _parts(self, lane: Lane, first: int, rows: int) -> list[memoryview]:
        """What the worker is given of some rows."""
        return payload_parts(lane, first, rows)

    def _near(self, lane: Lane, ranges: Sequence[Range]) -> set[int] | None:
        """Slots whose first bytes are those of a known input; None where that cannot be told without a digest."""
        if isinstance(lane, TextLane):
            return None
        rows = lane.slab.input_bytes[0]
        near: set[int] = set()
        for first, count in ranges:
            known = np.isin(fingerprints(rows[first : first + count]), self._keys)
            near.update((first + np.flatnonzero(known)).tolist())
        return near

    def snapshot(self) -> dict[str, Any]:
        """What is known, as JSON values."""
        return {"suspects": len(self._suspects), "refused": len(self._refused), "found": self.found}


class TextQuarantine(Quarantine):
    """What is known of the texts of one model, which kill its tokenizer; see `Quarantine`.

    They are looked at when they are sent to the tokenizer. Here a text is known by its bytes, and where it kills the
    executor by its tokens: two tables.
    """

    def _next(self, lane: Lane, limit: int) -> list[Range]:
        return _text_lane(lane).untokenized.peek(limit)

    def _parts(self, lane: Lane, first: int, rows: int) -> list[memoryview]:
        """The texts, each with its length behind it: where one ends is a part of what they are."""
        texts = _text_lane(lane)
        parts: list[memoryview] = []
        for slot in range(first, first + rows):
            offset, nbytes = int(texts.text_offsets[slot]), int(texts.text_nbytes[slot])
            parts += [texts.slab.text[offset : offset + nbytes], memoryview(nbytes.to_bytes(4, "little"))]
        return parts


def _text_lane(lane: Lane) -> TextLane:
    if isinstance(lane, TextLane):
        return lane
    raise AssertionError("texts of a model without a tokenizer: this is a bug")


def _remember(table: dict[bytes, tuple[int, int]], digest: bytes, entry: tuple[int, int]) -> None:
    """Enters a digest as the newest."""
    table.pop(digest, None)
    table[digest] = entry
    if len(table) > MAX_KNOWN:
        del table[next(iter(table))]


def requests_in(lane: Lane, ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
    """(first slot, rows) of each request of some ranges, answered ones too."""
    rows = lane.slots.rows
    for first, count in ranges:
        for slot in range(first, first + count):
            if rows[slot]:
                yield slot, rows[slot]


def payload_parts(lane: Lane, first: int, rows: int) -> list[memoryview]:
    """What a model is given of some rows, one piece a tensor; of a text its tokens, since the text is gone by then."""
    if isinstance(lane, TextLane):
        tokens, lengths = lane.slab.tokens, lane.lengths
        return [tokens[slot, : lengths[slot]].data.cast("B") for slot in range(first, first + rows)]
    return [view[first * nbytes : (first + rows) * nbytes] for view, nbytes in lane.tensors]


def _parts_of(lane: Lane, payload: memoryview, rows: int) -> Iterator[memoryview]:
    """The rows in a payload, one piece a tensor, without the padding between them."""
    offset = 0
    for _, nbytes in lane.tensors:
        yield payload[offset : offset + rows * nbytes]
        offset += pad8(rows * nbytes)


def digest_of(parts: Iterable[memoryview]) -> bytes:
    """What an input is known by."""
    state = blake2b(digest_size=DIGEST_NBYTES)
    for part in parts:
        state.update(part)
    return state.digest()


def fingerprint(part: memoryview) -> int:
    """A cheap mark of one input: of 8 bytes at the front, in the middle and at the end. 0 for less than 8 bytes.

    Args:
        part: first row of its first tensor.
    """
    nbytes = len(part)
    if nbytes < WINDOW_NBYTES:
        return 0
    total = 0
    for at, factor in zip(_windows(nbytes), _FACTORS, strict=True):
        total += int.from_bytes(part[at : at + WINDOW_NBYTES], "little") * factor
    return total & _MASK


def fingerprints(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The same for many inputs of one row: u64[requests].

    Args:
        rows: u8[requests, bytes] of their first tensor.
    """
    count, nbytes = rows.shape
    total = np.zeros(count, np.uint64)
    if nbytes >= WINDOW_NBYTES:
        for at, factor in zip(_windows(nbytes), _FACTORS, strict=True):
            window = np.ascontiguousarray(rows[:, at : at + WINDOW_NBYTES]).view("<u8")[:, 0]
            total += window * np.uint64(factor)
    return total


def _windows(nbytes: int) -> tuple[int, int, int]:
    last = nbytes - WINDOW_NBYTES
    return 0, last // 2, last
