"""From finished rows to bytes on the wire: whole batches as columns where nothing about them is special."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from trioserve_protocol import (
    HEADER,
    HEADER_DTYPE,
    HEADER_NBYTES,
    W0_RESULT,
    W0_RESULT_MANY,
    Flag,
    pad8,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._batch import Batch
    from ._lane import Lane
    from ._session import Buffer, Session

LARGE_ROW_NBYTES: Final = 16_384
"""Result rows from this size on are sent from the slab itself instead of being copied behind their header."""

COLUMNS_FROM: Final = 4
"""Rows of a batch from which its replies are built as columns; measured: 1 row 3 us one by one and 8 us as
columns, 4 rows 9 us and 8 us."""

_END: Final = int(Flag.END)
_U32_MAX: Final = 2**32 - 1


class ReplyBlock:
    """The RESULT frames of one batch of one-row requests, laid out one after the other.

    Word 0, length, flags and row count of every header are the same for all batches of a model and are written
    once; a batch writes three header columns and its payload.

    Args:
        lane: the model; its signature fixes the frame size.
    """

    def __init__(self, lane: Lane) -> None:
        payload = lane.signature.output_nbytes(1)
        self.stride: Final = HEADER_NBYTES + payload
        self.fits: Final = payload <= LARGE_ROW_NBYTES
        rows = lane.max_rows if self.fits else 0
        self._block = np.zeros((rows, self.stride), np.uint8)
        self._flat = self._block.data.cast("B") if rows else memoryview(b"")
        self._frames: Final = [row.data for row in self._block]
        headers = self._block[:, :HEADER_NBYTES].view(HEADER_DTYPE)[:, 0]
        headers["w0"] = W0_RESULT
        headers["body"] = payload
        headers["flags"] = _END
        headers["rows"] = 1
        self._rids = headers["rid"]
        self._server_us = headers["tmo"]
        self._queue_us = headers["aux"]
        self._payload_nbytes: Final = payload
        self._views: Final = [(rows.data.cast("B"), rows.shape[1]) for rows in lane.slab.output_bytes]
        self._outputs: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
        offset = HEADER_NBYTES
        for output in lane.slab.output_bytes:
            nbytes = output.shape[1]
            self._outputs.append((self._block[:, offset : offset + nbytes], output))
            offset += pad8(nbytes)

    def send(self, batch: Batch, sessions: Sequence[Session], now_ns: int) -> None:
        """Answers all requests of a batch of one range; each has one row and is live, and ends with this.

        Args:
            batch: the finished batch.
            sessions: the sessions table.
            now_ns: when the completion was read.
        """
        slots = batch.lane.slots
        [(first, count)] = batch.ranges
        if count < COLUMNS_FROM:
            self._send_each(batch, first, count, sessions, now_ns)
            return
        end = first + count
        owners = slots.sessions[first:end].tolist()
        order = _grouped(owners)
        rows: slice | NDArray[np.intp] = slice(first, end)
        if order is not None:
            owners = [owners[index] for index in order]
            rows = np.array(order) + first
        for frames, output in self._outputs:
            frames[:count] = output[rows]
        self._rids[:count] = slots.rids[rows]
        self._server_us[:count] = (now_ns - slots.readies_ns[rows]) // 1000
        self._queue_us[:count] = (batch.cut_ns - slots.readies_ns[rows]) // 1000
        self._write(owners, sessions, batch.lane.body_nbytes)

    def _send_each(
        self, batch: Batch, first: int, count: int, sessions: Sequence[Session], now_ns: int
    ) -> None:
        """The same for a few rows, one by one: a vector operation costs more than it saves."""
        slots, payload_nbytes = batch.lane.slots, self._payload_nbytes
        body_nbytes = batch.lane.body_nbytes
        for slot in range(first, first + count):
            ready_ns = slots.ready_ns[slot]
            server_us = min((now_ns - ready_ns) // 1000, _U32_MAX)
            queue_us = min((batch.cut_ns - ready_ns) // 1000, _U32_MAX)
            parts: list[Buffer] = [
                HEADER.pack(W0_RESULT, payload_nbytes, slots.rid[slot], 0, _END, server_us, 0, 1, queue_us)
            ]
            for view, nbytes in self._views:
                parts += (view[slot * nbytes : (slot + 1) * nbytes], bytes(-nbytes & 7))
            session = sessions[slots.session[slot]]
            session.inflight -= 1
            session.inflight_nbytes -= body_nbytes
            session.sink.write(b"".join(parts))

    def _write(self, owners: list[int], sessions: Sequence[Session], body_nbytes: int) -> None:
        """One write a session: its frames are adjacent."""
        flat, stride = self._flat, self.stride
        start, count = 0, len(owners)
        if len(set(owners)) == count:
            for owner, frame in zip(owners, self._frames, strict=False):
                session = sessions[owner]
                session.inflight -= 1
                session.inflight_nbytes -= body_nbytes
                session.sink.write(frame)
            return
        while start < count:
            owner = owners[start]
            stop = start + 1
            while stop < count and owners[stop] == owner:
                stop += 1
            session = sessions[owner]
            session.inflight -= stop - start
            session.inflight_nbytes -= (stop - start) * body_nbytes
            session.sink.write(flat[start * stride : stop * stride])
            start = stop


def _grouped(owners: list[int]) -> list[int] | None:
    """An order that brings equal owners together and keeps theirs, None if they are together already."""
    runs = 1 + sum(map(int.__ne__, owners, owners[1:]))
    if runs == len(set(owners)):
        return None
    return sorted(range(len(owners)), key=owners.__getitem__)


def result_parts(
    lane: Lane,
    first: int,
    rows: int,
    *,
    rid: int,
    flags: int,
    server_ns: int,
    queue_ns: int,
    meta: bytes = b"",
    many: bool = False,
) -> list[Buffer]:
    """One RESULT or RESULT_MANY frame; the payload is slab memory, not a copy.

    Args:
        lane: the model.
        first: the first slot.
        rows: slots answered by this frame, contiguous.
        rid: the request's id, of the first for RESULT_MANY.
        flags: the flags the request came with.
        server_ns: time since it was received.
        queue_ns: time it waited for its batch.
        meta: encoded TLVs.
        many: whether each row answers a request of its own.
    """
    if flags & Flag.NOREPLY:
        payload: list[Buffer] = []
    else:
        payload = []
        for output in lane.slab.output_bytes:
            data = output[first : first + rows].data.cast("B")
            padding = pad8(len(data)) - len(data)
            payload.append(data)
            if padding:
                payload.append(bytes(padding))
    body = len(meta) + sum(map(len, payload))
    header = HEADER.pack(
        W0_RESULT_MANY if many else W0_RESULT,
        body,
        rid,
        0,
        _END,
        min(server_ns // 1000, _U32_MAX),
        len(meta) // 8,
        rows,
        min(queue_ns // 1000, _U32_MAX),
    )
    return [header + meta, *payload]
