"""The slot table against a model that keeps a set of holders for each slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from tests.memory.slot_rows import BLOCK, assert_plain, make_special, table
from trioserve.memory import FULL
from trioserve.memory._slots import HELD_BY_BATCH, HELD_BY_REQUEST


@dataclass
class Lease:
    """What the model knows of one request: its slots and who holds them."""

    first: int
    rows: int
    rid: int
    special: bool
    holders: set[str] = field(default_factory=lambda: {"request"})

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.rows)


class SlotMachine(RuleBasedStateMachine):
    """Random leases, holds and answers; the table must agree with the model after every step."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.table = table(blocks=3)
        self.live: list[Lease] = []
        self.rids = 0

    def taken(self) -> set[int]:
        return {slot for lease in self.live for slot in lease.slots}

    def lease_of(self, first: int, rows: int, *, special: bool) -> Lease:
        taken = self.taken()
        assert not taken & set(range(first, first + rows)), "a slot in use was leased again"
        assert first // BLOCK == (first + rows - 1) // BLOCK
        assert_plain(self.table, first, rows)
        self.rids += 1
        lease = Lease(first, rows, self.rids, special)
        self.table.rid[first] = lease.rid
        if special:
            make_special(self.table, first, rows)
        self.live.append(lease)
        return lease

    def has_room(self, rows: int) -> bool:
        """Whether some block has contiguous free rows; those at the end of the open block are taken in order."""
        taken = self.taken()
        fill, end = self.table._fill, self.table._end
        if rows <= end - fill:
            return True
        taken |= set(range(fill, end))
        starts = (first for first in range(self.table.total) if first % BLOCK + rows <= BLOCK)
        return any(not taken & set(range(first, first + rows)) for first in starts)

    @rule(target=leases, rows=st.integers(1, BLOCK), special=st.booleans())
    def lease(self, rows: int, *, special: bool) -> Lease | None:
        had_room = self.has_room(rows)
        first = self.table.lease(rows)
        if first == FULL:
            assert not had_room
            return None
        assert had_room
        return self.lease_of(first, rows, special=special or rows > 1)

    @rule(target=leases, rows=st.integers(1, 2 * BLOCK))
    def lease_run(self, rows: int) -> Lease | None:
        had_room = self.has_room(1)
        first, count = self.table.lease_run(rows)
        assert had_room == (1 <= count <= rows) == (first != FULL)
        if not count:
            return None
        for slot in range(first + 1, first + count):
            self.lease_of(slot, 1, special=False)
        return self.lease_of(first, 1, special=False)

    @rule(lease=leases)
    def seal(self, lease: Lease | None) -> None:
        if lease is not None and lease in self.live:
            self.table.seal(lease.first)

    @rule(lease=leases)
    def hold(self, lease: Lease | None) -> None:
        if lease is not None and "request" in lease.holders:
            self.table.hold_for_batch(lease.first, lease.rows)
            lease.holders.add("batch")

    @rule(lease=leases)
    def claim(self, lease: Lease | None) -> None:
        if lease is None or lease not in self.live:
            return
        assert self.table.claim(lease.first) == ("request" in lease.holders)
        self.drop(lease, "request")

    @rule(lease=consumes(leases))
    def drop_batch(self, lease: Lease | None) -> None:
        if lease is not None and lease in self.live and "batch" in lease.holders:
            self.table.drop_batch(lease.first, lease.rows)
            self.drop(lease, "batch")

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish_block(self, data: st.DataObject) -> None:
        """A batch of all that is leased in one block comes back."""
        block = data.draw(st.sampled_from(sorted({lease.first // BLOCK for lease in self.live})))
        members = sorted(
            (lease for lease in self.live if lease.first // BLOCK == block), key=lambda lease: lease.first
        )
        first, last = members[0].first, members[-1]
        count = last.first + last.rows - first
        if sum(lease.rows for lease in members) != count:
            return  # holes: no batch has this range
        self.table.hold_for_batch(first, count)
        plain = not self.table.special[block] and self.table.all_live(first, count)
        if plain:
            self.table.free_plain_batch(first, count)
        else:
            for lease in members:
                assert self.table.claim(lease.first) == ("request" in lease.holders)
            self.table.drop_batch(first, count)
        for lease in members:
            lease.holders.clear()
            self.live.remove(lease)

    def drop(self, lease: Lease, holder: str) -> None:
        lease.holders.discard(holder)
        if not lease.holders:
            self.live.remove(lease)

    @invariant()
    def agrees(self) -> None:
        slots = self.table
        assert slots.leased == len(self.taken())
        expected = np.zeros(slots.total, np.uint8)
        for lease in self.live:
            bits = HELD_BY_REQUEST * ("request" in lease.holders) | HELD_BY_BATCH * ("batch" in lease.holders)
            expected[lease.first : lease.first + lease.rows] = bits
            assert slots.rows[lease.first] == lease.rows
        assert (slots.holds == expected).all()
        waiting = sorted(lease.first for lease in self.live if "request" in lease.holders)
        assert slots.live_requests().tolist() == waiting

    @invariant()
    def keeps_blocks(self) -> None:
        used = {slot // BLOCK for slot in self.taken()}
        assert self.table.free_blocks == 3 - len(used)

    @invariant()
    def keeps_free_rows_plain(self) -> None:
        for slot in set(range(self.table.total)) - self.taken():
            assert_plain(self.table, slot, 1)


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
