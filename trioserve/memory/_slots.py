"""Who holds each row of a model's slab, and which request lies in it.

A slot is one row of every region of the slab. Per-request facts are columns over the slots, kept twice in
one memory: an `array` for single cells (a scalar store into a numpy array costs three times as much) and a
numpy view of it for whole runs. The singular name is the cells, the plural the column.

Slots are leased out of blocks of one batch each, in arrival order, so that the batch cut from them is one
contiguous range that the executor uses in place. A block that was cut is sealed and returns to the free list
when its last row is free; the free list is a stack, so the rows handed out next are those still in cache. Only when
no block is free are rows leased out of the holes of sealed ones: a few slow bodies must not take a block each.

A slot has two holders: the request, until it is answered, and the batch, until the worker has let go. A
request that is cancelled or expires drops its hold at once, but the row is not handed to the next client while
a copy or a kernel may still read it.

Most requests are *plain*: one row, a body of the usual size, no wish beyond a result. What the columns say of them
by default is true of them, so admission writes only id, session, deadline and time, and a batch of them is
answered without looking at the rest. A request that differs marks its block as special and writes all columns;
they are back at their defaults when its slots are free.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

HELD_BY_REQUEST: Final = 1
HELD_BY_BATCH: Final = 2
FULL: Final = -1


class SlotTable:
    """The slots of one model.

    Args:
        slots: rows in the slab, a multiple of `block_rows`.
        block_rows: rows in a block: the model's largest batch.
        plain_body_nbytes: body of a plain request.

    Ownership: only the process that owns the slab writes here. Every method is sync, so that a check and the
    change that follows it are atomic under Trio.
    """

    has_ghosts = False
    """Whether a request was answered while a batch held it, since whoever looks for those has set this to False."""

    def __init__(self, slots: int, block_rows: int, plain_body_nbytes: int = 0) -> None:
        if block_rows < 1 or slots < block_rows or slots % block_rows:
            raise ValueError(f"slots: expected a multiple of block_rows ({block_rows}), got {slots}")
        self.total: Final = slots
        self.block_rows: Final = block_rows
        self.plain_body_nbytes: Final = plain_body_nbytes
        self.rid = array("Q", bytes(8 * slots))
        self.deadline_ns = array("q", bytes(8 * slots))
        self.received_ns = array("q", bytes(8 * slots))
        self.parsed_ns = array("q", bytes(8 * slots))
        self.tokenized_ns = array("q", bytes(8 * slots))
        self.ready_ns = array("q", bytes(8 * slots))
        self.session = array("I", bytes(4 * slots))
        self.body_nbytes = array("I", bytes(4 * slots))
        self.frame = array("I", bytes(4 * slots))
        self.flags = array("H", bytes(2 * slots))
        self.rows = array("H", bytes(2 * slots))
        self.hold = array("B", bytes(slots))
        self.rids: NDArray[np.uint64] = np.frombuffer(self.rid, np.uint64)
        self.deadlines_ns: NDArray[np.int64] = np.frombuffer(self.deadline_ns, np.int64)
        self.receiveds_ns: NDArray[np.int64] = np.frombuffer(self.received_ns, np.int64)
        self.parseds_ns: NDArray[np.int64] = np.frombuffer(self.parsed_ns, np.int64)
        self.tokenizeds_ns: NDArray[np.int64] = np.frombuffer(self.tokenized_ns, np.int64)
        self.readies_ns: NDArray[np.int64] = np.frombuffer(self.ready_ns, np.int64)
        self.sessions: NDArray[np.uint32] = np.frombuffer(self.session, np.uint32)
        self.bodies_nbytes: NDArray[np.uint32] = np.frombuffer(self.body_nbytes, np.uint32)
        self.frames: NDArray[np.uint32] = np.frombuffer(self.frame, np.uint32)
        self.flag_column: NDArray[np.uint16] = np.frombuffer(self.flags, np.uint16)
        self.row_counts: NDArray[np.uint16] = np.frombuffer(self.rows, np.uint16)
        self.holds: NDArray[np.uint8] = np.frombuffer(self.hold, np.uint8)
        self.row_counts[:] = 1
        self.bodies_nbytes[:] = plain_body_nbytes
        self.special = bytearray(slots // block_rows)
        """Per block: whether it has held a request that is not plain since it was free."""
        self.on_block_free: Callable[[int, int], None] | None = None
        """Told (first slot, rows) when a block holds nothing any more; tests overwrite its memory, so that a row that
        is read before it is written shows."""
        self._leased = [0] * (slots // block_rows)
        self._free = list(range(slots // block_rows - 1, -1, -1))
        self._open = FULL
        self._fill = self._end = 0

    # ---------------------------------------------------------------- leasing

    def lease(self, rows: int) -> int:
        """Takes `rows` contiguous slots for a request.

        Args:
            rows: 1 to `block_rows`.

        Returns:
            The first slot, held by the request, or `FULL`.
        """
        first = self._fill
        if first + rows > self._end:
            if rows > self.block_rows:
                raise AssertionError(f"a request of {rows} rows does not fit in a block: this is a bug")
            if not self._open_next():
                return self._lease_hole(rows)
            first = self._fill
        self._fill = first + rows
        self._leased[self._open] += rows
        if rows == 1:
            self.hold[first] = HELD_BY_REQUEST
        else:
            self.holds[first : first + rows] = HELD_BY_REQUEST
        return first

    def lease_run(self, rows: int) -> tuple[int, int]:
        """Takes up to `rows` contiguous slots of one block, as many as the open block still has.

        Returns:
            First slot and count; the count is 0 when no slot is free.
        """
        if self._fill == self._end and not self._open_next():
            first = self._lease_hole(1)
            return first, int(first != FULL)
        count = min(rows, self._end - self._fill)
        return self.lease(count), count

    def seal(self, slot: int) -> None:
        """Closes the block of a slot, if it is the open one.

        What is leased next then starts a block of its own, and with it a batch that is contiguous.
        """
        if slot // self.block_rows == self._open:
            self._open = FULL
            self._fill = self._end = 0

    def _lease_hole(self, rows: int) -> int:
        """Takes contiguous slots that were freed inside a block in use; only when no block is free."""
        vacant = self.holds == 0
        vacant[self._fill : self._end] = False
        free = vacant.reshape(-1, self.block_rows)
        if rows > 1:
            free = np.lib.stride_tricks.sliding_window_view(free, rows, axis=1).all(axis=2)
        holes = np.flatnonzero(free)
        if not holes.size:
            return FULL
        block, row = divmod(int(holes[0]), self.block_rows - rows + 1)
        first = block * self.block_rows + row
        self._leased[block] += rows
        self.holds[first : first + rows] = HELD_BY_REQUEST
        return first

    def _open_next(self) -> bool:
        if not self._free:
            return False
        if self._open != FULL and not self._leased[self._open]:
            raise AssertionError("an open block without leases is refilled from its start: this is a bug")
        self._open = self._free.pop()
        self.special[self._open] = False
        self._fill = self._open * self.block_rows
        self._end = self._fill + self.block_rows
        return True

    # ---------------------------------------------------------------- the two holders

    def is_live(self, first: int) -> bool:
        """Whether the request whose first row this is still waits for its answer."""
        return bool(self.hold[first] & HELD_BY_REQUEST)

    def mark_special(self, first: int) -> None:
        """The request that starts here is not plain."""
        self.special[first // self.block_rows] = True

    def received_at(self, first: int) -> int:
        """When a request was received; a plain one was ready in the same turn."""
        return self.received_ns[first] or self.ready_ns[first]

    def is_held_by_batch(self, first: int) -> bool:
        """Whether a batch, a tokenizer or an arriving body holds the request's rows."""
        return bool(self.hold[first] & HELD_BY_BATCH)

    def all_live(self, first: int, count: int) -> bool:
        """Whether every row of the range belongs to an unanswered request."""
        if count == 1:
            return bool(self.hold[first] & HELD_BY_REQUEST)
        return bool((self.holds[first : first + count] & HELD_BY_REQUEST).all())

    def any_live(self, first: int, count: int) -> bool:
        """Whether a row of the range belongs to an unanswered request."""
        return bool((self.holds[first : first + count] & HELD_BY_REQUEST).any())

    def hold_for_batch(self, first: int, count: int) -> None:
        """A batch takes its hold on a range: its rows stay until `drop_batch`."""
        if count == 1:
            self.hold[first] |= HELD_BY_BATCH
            return
        self.holds[first : first + count] |= HELD_BY_BATCH

    def claim(self, first: int) -> bool:
        """Ends one request: the right to send its terminal reply, granted once.

        Args:
            first: the request's first slot.

        Returns:
            True for the one caller that may answer it, False when it was answered before.

        Ownership: rows that no batch holds are free when this returns.
        """
        if not self.hold[first] & HELD_BY_REQUEST:
            return False
        rows = self.rows[first]
        if self.hold[first] & HELD_BY_BATCH:
            self.holds[first : first + rows] = HELD_BY_BATCH
            self.has_ghosts = True
        else:
            self.holds[first : first + rows] = 0
            self._make_plain(slice(first, first + rows), first)
            self._give_back(first, rows)
        return True

    def drop_batch(self, first: int, count: int) -> None:
        """The worker has let go of a range: rows whose request is answered are free."""
        holds = self.holds[first : first + count]
        holds &= HELD_BY_REQUEST
        waiting = int(np.count_nonzero(holds))
        if waiting != count:
            if waiting:
                self._make_plain(first + np.flatnonzero(holds == 0), first)
            else:
                self._make_plain(slice(first, first + count), first)
            self._give_back(first, count - waiting)

    def free_plain_batch(self, first: int, count: int) -> None:
        """Ends the plain requests of a range, all live, and lets go of it."""
        if count == 1:
            self.hold[first] = 0
        else:
            self.holds[first : first + count] = 0
        self._give_back(first, count)

    def _make_plain(self, rows: slice | NDArray[np.intp], first: int) -> None:
        """Back to the defaults, for rows of one block that are free now."""
        if self.special[first // self.block_rows]:
            self.row_counts[rows] = 1
            self.bodies_nbytes[rows] = self.plain_body_nbytes
            self.flag_column[rows] = 0
            self.receiveds_ns[rows] = 0

    def _give_back(self, first: int, count: int) -> None:
        block = first // self.block_rows
        leased = self._leased[block] = self._leased[block] - count
        if leased:
            if leased < 0:
                raise AssertionError(f"slot {first} was freed twice: this is a bug")
            return
        if self.on_block_free is not None:
            self.on_block_free(block * self.block_rows, self.block_rows)
        if block == self._open:
            self._fill = block * self.block_rows
        else:
            self._free.append(block)

    # ---------------------------------------------------------------- finding requests

    def live_in(self, first: int, count: int) -> NDArray[np.intp]:
        """First slots of the unanswered requests of a range."""
        live = (self.holds[first : first + count] & HELD_BY_REQUEST) > 0
        return first + np.flatnonzero(live & (self.row_counts[first : first + count] > 0))

    def answered_requests(self, first: int, count: int) -> NDArray[np.intp]:
        """First slots of the answered requests of a range that a batch holds."""
        answered = (self.holds[first : first + count] & HELD_BY_REQUEST) == 0
        return first + np.flatnonzero(answered & (self.row_counts[first : first + count] > 0))

    def live_requests(self, session: int = FULL) -> NDArray[np.intp]:
        """First slots of the unanswered requests, of one session or of all."""
        live = ((self.holds & HELD_BY_REQUEST) > 0) & (self.row_counts > 0)
        if session != FULL:
            live &= self.sessions == session
        return np.flatnonzero(live)

    def find(self, session: int, rid: int, count: int = 1) -> NDArray[np.intp]:
        """First slots of a session's unanswered requests with ids `rid` to `rid + count - 1`."""
        # Ids first, stale ones of free slots included: what passes is few, and 1,024 slots cost 4 us instead of 10.
        ids = self.rids - np.uint64(rid)
        near = np.flatnonzero((ids < np.uint64(count)) & (self.sessions == session))
        return near[((self.holds[near] & HELD_BY_REQUEST) > 0) & (self.row_counts[near] > 0)]

    @property
    def leased(self) -> int:
        """Slots that a request or a batch holds; 0 at rest."""
        return sum(self._leased)

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing; all of them at rest (an open block without leases counts)."""
        return len(self._free) + (self._open != FULL and not self._leased[self._open])
