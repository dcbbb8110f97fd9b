"""Descriptors: what crosses between a stage and its worker process, instead of the rows themselves.

Every message is little-endian, 1 to 16,384 bytes, and ends with the CRC-32 of all that stands before it.

    batch:  | epoch u32 | kind u16 | model u16 | seq u64 | ranges u16 | columns u16 | rows u32 |
            | ranges x (first u32, count u32) | lengths u32[rows]? | offsets u32[rows]? | crc u32 |

    result: | epoch u32 | kind u16 | model u16 | seq u64 | code u16 | failures u16 | rows u32 |
            | started_ns u64 | input_ns u64 | run_ns u64 | finished_ns u64 | padding u32 | gathered u32 |
            | message_nbytes u16 | columns u16 |
            | failures x (row u32, code u16, nbytes u16) | lengths u32[rows]? | message | failure messages | crc u32 |

`columns` says which columns follow: bit 0 lengths, bit 1 offsets. The CRC is what makes a flipped bit in a slot
number a dropped link instead of an answer to the wrong client; it costs 0.2 us on the common message. Epoch,
sequence and bounds are checked besides, because a CRC proves that bytes arrived as sent, not that a sane peer
sent them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

MAX_MESSAGE_NBYTES: Final = 16_384
"""Largest message on the data pair. A dozen of them fit the default socket buffers, so credits below that never
block."""

MAX_TEXT_NBYTES: Final = 200
"""Longest error message in a descriptor, bytes of UTF-8; the whole story is in the worker's log."""

KIND_BATCH: Final = 1
KIND_RESULT: Final = 2
KIND_ECHO: Final = 3

_LENGTHS: Final = 1
_OFFSETS: Final = 2

_BATCH: Final = struct.Struct("<IHHQHHI")
_ONE_RANGE: Final = struct.Struct("<IHHQHHIII")
_RESULT: Final = struct.Struct("<IHHQHHIQQQQIIHH")
_FAILURE: Final = struct.Struct("<IHH")
_CRC: Final = struct.Struct("<I")
_CRC_NBYTES: Final = _CRC.size


class CorruptDescriptor(Exception):
    """A message that no sound peer of this epoch can have sent. The link that brought it must be dropped."""


class StageBatch(NamedTuple):
    """A batch on its way to a worker: which rows of which slab, in service order."""

    model: int
    """Index of the model in the worker's specification."""

    seq: int
    """Number of the batch, u64, rising on each link; the result carries it."""

    ranges: tuple[tuple[int, int], ...]
    """(first slot, count) in service order, at least one, counts at least 1."""

    lengths: npt.NDArray[np.uint32] | None = None
    """One value a row: tokens for a text model, bytes of text for a tokenizer. None for fixed-shape models."""

    offsets: npt.NDArray[np.uint32] | None = None
    """One value a row: where its text starts in the text region, for a tokenizer. None for all others."""

    @property
    def rows(self) -> int:
        """Rows of all ranges."""
        return sum(count for _, count in self.ranges)


class StageResult(NamedTuple):
    """A batch that came back. Its outputs stand in the slab, in the rows that it named."""

    model: int
    """As in the batch."""

    seq: int
    """As in the batch."""

    code: int
    """0, or the `ErrorCode` that ended every row of the batch."""

    message: str
    """Safe to send to a client; empty on success."""

    started_ns: int
    """When the worker took it up, CLOCK_MONOTONIC, as the three below."""

    input_ns: int
    """When its inputs stood ready for the model."""

    run_ns: int
    """When the model had returned."""

    finished_ns: int
    """When its outputs stood in the slab."""

    padding: int
    """Rows, or tokens of a text model, that were computed for nothing."""

    rows_gathered: int
    """Rows copied to make one batch of several ranges; 0 when used in place."""

    failures: tuple[tuple[int, int, str], ...] = ()
    """(row position in the batch, `ErrorCode`, message) of each row that failed alone, ascending."""

    lengths: npt.NDArray[np.uint32] | None = None
    """Tokens of each row, from a tokenizer; None from all others."""


class ModelBounds(NamedTuple):
    """What a descriptor may name of one model."""

    slots: int
    """Rows of the slab."""

    max_rows: int
    """Rows of the largest batch."""

    max_length: int = 0
    """Largest value in `lengths`; 0 means that there is no such column."""

    min_length: int = 0
    """Smallest value in `lengths`."""

    text_nbytes: int = 0
    """End of the text region; 0 means that there is no offsets column."""


def pack_batch(batch: StageBatch, epoch: int) -> bytes:
    """The message for a batch.

    Raises:
        ValueError: The message would exceed 16,384 bytes, or a column has not one value a row.
    """
    model, seq, ranges, lengths, offsets = batch
    if lengths is None and len(ranges) == 1:
        first, count = ranges[0]
        body = _ONE_RANGE.pack(epoch, KIND_BATCH, model, seq, 1, 0, count, first, count)
        return body + crc32(body).to_bytes(_CRC_NBYTES, "little")
    rows = batch.rows
    columns = (_LENGTHS if lengths is not None else 0) | (_OFFSETS if offsets is not None else 0)
    flat = [value for pair in ranges for value in pair]
    body = b"".join(
        (
            _BATCH.pack(epoch, KIND_BATCH, model, seq, len(ranges), columns, rows),
            struct.pack(f"<{len(flat)}I", *flat),
            _column_bytes(lengths, rows),
            _column_bytes(offsets, rows),
        )
    )
    return _sealed(body)


def unpack_batch(message: memoryview, *, epoch: int, bounds: Sequence[ModelBounds]) -> StageBatch:
    """Read and check a batch.

    Args:
        message: One message, whole.
        epoch: That of this worker's start.
        bounds: One entry a model of this worker.

    Returns:
        The batch; its columns alias `message`.

    Raises:
        CorruptDescriptor: Anything is off.
    """
    end = _opened(message, _BATCH.size)
    epoch_in, kind, model, seq, n_ranges, columns, rows = _BATCH.unpack_from(message)
    if epoch_in != epoch or kind != KIND_BATCH:
        raise CorruptDescriptor(f"kind {kind} of epoch {epoch_in}, expected a batch of epoch {epoch}")
    if model >= len(bounds):
        raise CorruptDescriptor(f"model {model} of {len(bounds)}")
    bound = bounds[model]
    expected = (_LENGTHS if bound.max_length else 0) | (_OFFSETS if bound.text_nbytes else 0)
    if columns != expected:
        raise CorruptDescriptor(f"columns {columns:#x}, expected {expected:#x}")
    n_columns = columns.bit_count()
    if end != _BATCH.size + 8 * n_ranges + 4 * rows * n_columns:
        raise CorruptDescriptor(f"{end} bytes for {n_ranges} ranges and {n_columns} columns of {rows} rows")
    ranges = _read_ranges(message, n_ranges, rows, bound)
    if not n_columns:
        return StageBatch(model, seq, ranges)
    offset = _BATCH.size + 8 * n_ranges
    lengths = np.frombuffer(message, np.uint32, rows, offset)
    offsets = np.frombuffer(message, np.uint32, rows, offset + 4 * rows) if bound.text_nbytes else None
    _check_columns(lengths, offsets, bound)
    return StageBatch(model, seq, ranges, lengths, offsets)


def _read_ranges(
    message: memoryview, n_ranges: int, rows: int, bound: ModelBounds
) -> tuple[tuple[int, int], ...]:
    flat = struct.unpack_from(f"<{2 * n_ranges}I", message, _BATCH.size)
    total = 0
    for first, count in zip(flat[::2], flat[1::2], strict=True):
        if count == 0 or first + count > bound.slots:
            raise CorruptDescriptor(f"range of {count} rows from slot {first}, of {bound.slots} slots")
        total += count
    if total != rows or not 0 < rows <= bound.max_rows:
        raise CorruptDescriptor(f"{total} rows in ranges, {rows} named, at most {bound.max_rows} allowed")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _check_columns(
    lengths: npt.NDArray[np.uint32], offsets: npt.NDArray[np.uint32] | None, bound: ModelBounds
) -> None:
    if int(lengths.max()) > bound.max_length or int(lengths.min()) < bound.min_length:
        raise CorruptDescriptor(
            f"lengths {lengths.min()} to {lengths.max()}, allowed are {bound.min_length} to {bound.max_length}"
        )
    if offsets is not None:
        # In u64: the sum of two u32 wraps silently.
        last = int((offsets.astype(np.uint64) + lengths).max())
        if last > bound.text_nbytes:
            raise CorruptDescriptor(f"text up to byte {last} of {bound.text_nbytes}")


def pack_result(result: StageResult, epoch: int, rows: int) -> bytes:
    """The message for a result.

    Messages are cut to 200 bytes, and failures lose theirs altogether where the message would grow over 16,384 bytes.

    Args:
        result: What to send.
        epoch: That of this worker's start.
        rows: Rows of its batch.
    """
    message = result.message.encode()[:MAX_TEXT_NBYTES] if result.message else b""
    columns = 0 if result.lengths is None else _LENGTHS
    head = _RESULT.pack(
        epoch, KIND_RESULT, result.model, result.seq, result.code, len(result.failures), rows,
        result.started_ns, result.input_ns, result.run_ns, result.finished_ns,
        result.padding, result.rows_gathered, len(message), columns,
    )  # fmt: skip
    if not result.failures and not message and not columns:
        return head + crc32(head).to_bytes(_CRC_NBYTES, "little")
    texts = [text.encode()[:MAX_TEXT_NBYTES] for _, _, text in result.failures]
    lengths = _column_bytes(result.lengths, rows)
    fixed = _RESULT.size + _FAILURE.size * len(texts) + len(lengths) + len(message) + _CRC_NBYTES
    if fixed + sum(map(len, texts)) > MAX_MESSAGE_NBYTES:
        texts = [b""] * len(texts)
    failures = [
        _FAILURE.pack(row, code, len(text))
        for (row, code, _), text in zip(result.failures, texts, strict=True)
    ]
    return _sealed(b"".join((head, *failures, lengths, message, *texts)))


def unpack_result(message: memoryview, *, epoch: int, model: int, seq: int, rows: int) -> StageResult:
    """Read and check the result of the oldest batch in flight.

    Args:
        message: One message, whole.
        epoch: That of the worker's start.
        model: That of the batch which must come back now, as the two below.
        seq: Its number.
        rows: Its rows.

    Returns:
        The result; nothing in it aliases `message`.

    Raises:
        CorruptDescriptor: Anything is off, or it answers another batch.
    """
    end = _opened(message, _RESULT.size)
    (
        epoch_in, kind, model_in, seq_in, code, n_failures, rows_in,
        started_ns, input_ns, run_ns, finished_ns, padding, gathered, message_nbytes, columns,
    ) = _RESULT.unpack_from(message)  # fmt: skip
    if (epoch_in, kind, model_in, seq_in, rows_in) != (epoch, KIND_RESULT, model, seq, rows):
        raise CorruptDescriptor(
            f"kind {kind} for batch {seq_in} of {rows_in} rows, model {model_in}, epoch {epoch_in}; "
            f"expected the result of batch {seq} of {rows} rows, model {model}, epoch {epoch}"
        )
    if end == _RESULT.size and not n_failures and not message_nbytes and not columns:
        return StageResult(model, seq, code, "", started_ns, input_ns, run_ns, finished_ns, padding, gathered)
    text, failures, lengths = _read_tail(message, end, rows, n_failures, message_nbytes, columns)
    return StageResult(
        model,
        seq,
        code,
        text,
        started_ns,
        input_ns,
        run_ns,
        finished_ns,
        padding,
        gathered,
        failures,
        lengths,
    )


def _read_tail(
    message: memoryview, end: int, rows: int, n_failures: int, message_nbytes: int, columns: int
) -> tuple[str, tuple[tuple[int, int, str], ...], npt.NDArray[np.uint32] | None]:
    lengths_at = _RESULT.size + _FAILURE.size * n_failures
    text_at = lengths_at + (4 * rows if columns == _LENGTHS else 0)
    at = text_at + message_nbytes
    if columns not in (0, _LENGTHS) or n_failures > rows or at > end:
        raise CorruptDescriptor(f"{n_failures} failures and columns {columns:#x} in {end} bytes")
    failures = []
    previous = -1
    for row, code, nbytes in _FAILURE.iter_unpack(message[_RESULT.size : lengths_at]):
        if not previous < row < rows or code == 0 or at + nbytes > end:
            raise CorruptDescriptor(f"failure {code:#x} of row {row} of {rows}")
        failures.append((row, code, str(message[at : at + nbytes], "utf-8", "replace")))
        previous, at = row, at + nbytes
    if at != end:
        raise CorruptDescriptor(f"{end - at} bytes too many")
    lengths = np.frombuffer(message, np.uint32, rows, lengths_at).copy() if columns else None
    return str(message[text_at : text_at + message_nbytes], "utf-8", "replace"), tuple(failures), lengths


def pack_echo(epoch: int, seq: int) -> bytes:
    """A message that the worker sends back as it is: how long a hop takes is measured with it."""
    return _sealed(_BATCH.pack(epoch, KIND_ECHO, 0, seq, 0, 0, 0))


def is_echo(message: memoryview) -> bool:
    """Whether a message is an echo or its answer; the caller compares it with what it sent, or returns it unread."""
    return len(message) == _BATCH.size + _CRC_NBYTES and message[4] == KIND_ECHO


def _column_bytes(column: npt.NDArray[np.uint32] | None, rows: int) -> bytes:
    if column is None:
        return b""
    if column.shape != (rows,) or column.dtype != np.uint32:
        raise ValueError(f"a column of {column.dtype} {column.shape} for {rows} rows of uint32")
    return column.tobytes()


def _sealed(body: bytes) -> bytes:
    if len(body) + _CRC_NBYTES > MAX_MESSAGE_NBYTES:
        raise ValueError(
            f"a message of {len(body) + _CRC_NBYTES} bytes, at most {MAX_MESSAGE_NBYTES} allowed"
        )
    return body + crc32(body).to_bytes(_CRC_NBYTES, "little")


def _opened(message: memoryview, head_nbytes: int) -> int:
    """Check size and CRC; returns where the CRC starts."""
    end = len(message) - _CRC_NBYTES
    if end < head_nbytes or len(message) > MAX_MESSAGE_NBYTES:
        raise CorruptDescriptor(f"a message of {len(message)} bytes")
    if crc32(message[:end]) != _CRC.unpack_from(message, end)[0]:
        raise CorruptDescriptor("the checksum does not match")
    return end
