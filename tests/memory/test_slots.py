"""The slot table, by itself and against a model that keeps a set of holders for each slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from trioserve.memory import FULL, SlotTable
from trioserve.memory._slots import HELD_BY_BATCH, HELD_BY_REQUEST

BLOCK = 4
BODY = 24


def table(blocks: int = 3) -> SlotTable:
    return SlotTable(blocks * BLOCK, BLOCK, BODY)


def answer(slots: SlotTable, first: int) -> None:
    assert slots.claim(first)


# ---------------------------------------------------------------- leasing


@pytest.mark.parametrize(("slots", "block_rows"), [(4, 0), (3, 4), (10, 4)])
def test_slots_are_a_multiple_of_blocks(slots: int, block_rows: int) -> None:
    with pytest.raises(ValueError, match="expected a multiple of block_rows"):
        SlotTable(slots, block_rows)


def test_leases_are_contiguous_in_arrival_order() -> None:
    slots = table()
    assert [slots.lease(1) for _ in range(BLOCK)] == [0, 1, 2, 3]
    assert slots.lease(1) == BLOCK
    assert slots.leased == BLOCK + 1


def test_a_request_of_several_rows_does_not_cross_a_block() -> None:
    slots = table()
    slots.lease(3)
    assert slots.lease(2) == BLOCK


def test_a_run_takes_what_the_open_block_has() -> None:
    slots = table()
    slots.lease(1)
    assert slots.lease_run(10) == (1, 3)
    assert slots.lease_run(10) == (4, 4)
    assert slots.lease_run(2) == (8, 2)
    assert slots.lease_run(10) == (10, 2)
    assert slots.lease_run(10) == (FULL, 0)
    assert slots.lease(1) == FULL


def test_a_sealed_block_is_left_for_the_next() -> None:
    slots = table()
    slots.lease(1)
    slots.seal(0)
    assert slots.lease(1) == BLOCK
    slots.seal(0)  # sealed already: the open block stays open
    assert slots.lease(1) == BLOCK + 1


def test_an_emptied_open_block_starts_again() -> None:
    slots = table()
    answer(slots, slots.lease(1))
    assert slots.lease(1) == 0
    assert slots.free_blocks == 2


def test_freed_blocks_are_used_last_in_first_out() -> None:
    slots = table()
    first, second = slots.lease(4), slots.lease(4)
    slots.lease(1)
    for start in (first, second):
        slots.rows[start] = 4
        slots.row_counts[start + 1 : start + 4] = 0
        slots.mark_special(start)
        answer(slots, start)
    slots.lease(3)
    assert slots.lease(1) == second


def test_holes_of_sealed_blocks_are_leased_when_no_block_is_free() -> None:
    slots = table(blocks=2)
    for _ in range(2):
        slots.seal(slots.lease(1))  # one row pins each block
    assert slots.free_blocks == 0
    assert slots.lease(1) == 1
    assert slots.lease(2) == 2
    assert slots.lease(3) == 5
    assert slots.lease(1) == FULL
    assert slots.leased == 8


def test_the_rest_of_the_open_block_comes_before_its_holes() -> None:
    slots = table(blocks=1)
    answer(slots, [slots.lease(1), slots.lease(1)][0])
    assert slots.lease(3) == FULL
    assert slots.lease_run(3) == (2, 2)
    assert slots.lease_run(3) == (0, 1)
    assert slots.lease_run(3) == (FULL, 0)


def test_a_hole_does_not_reach_into_the_rest_of_the_open_block() -> None:
    slots = table(blocks=1)
    for _ in range(3):
        slots.lease(1)
    answer(slots, 2)
    assert slots.lease(2) == FULL
    assert [slots.lease(1), slots.lease(1)] == [3, 2]


# ---------------------------------------------------------------- two holders


def test_the_right_to_answer_is_granted_once() -> None:
    slots = table()
    slot = slots.lease(1)
    assert slots.is_live(slot)
    assert slots.claim(slot)
    assert not slots.claim(slot)
    assert not slots.is_live(slot)
    assert slots.leased == 0


def test_a_row_that_a_batch_holds_is_not_free_when_its_request_is_answered() -> None:
    slots = table(blocks=1)
    slot = slots.lease(1)
    slots.hold_for_batch(slot, 1)
    assert slots.is_held_by_batch(slot)
    answer(slots, slot)
    assert not slots.claim(slot)
    assert slots.leased == 1
    assert slots.answered_requests(slot, 1).tolist() == [slot]
    slots.drop_batch(slot, 1)
    assert slots.leased == 0


def test_a_batch_that_lets_go_frees_the_answered_rows_only() -> None:
    slots = table()
    slots.lease_run(3)
    slots.hold_for_batch(0, 3)
    answer(slots, 1)
    assert slots.live_in(0, 3).tolist() == [0, 2]
    assert not slots.all_live(0, 3)
    slots.drop_batch(0, 3)
    assert slots.leased == 2
    assert slots.all_live(0, 1)
    assert not slots.all_live(1, 1)
    slots.drop_batch(0, 1)  # nothing is answered, nothing is freed
    assert slots.leased == 2


def test_freeing_twice_is_a_bug() -> None:
    slots = table()
    slots.lease(1)
    slots.free_plain_batch(0, 1)
    with pytest.raises(AssertionError, match="freed twice"):
        slots.free_plain_batch(0, 1)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_plain_batch_is_ended_in_one_step(rows: int) -> None:
    slots = table()
    first, count = slots.lease_run(rows)
    slots.hold_for_batch(first, count)
    slots.free_plain_batch(first, count)
    assert slots.leased == 0
    assert not slots.live_requests().size


# ---------------------------------------------------------------- plain and special


def make_special(slots: SlotTable, first: int, rows: int) -> None:
    slots.rows[first] = rows
    slots.row_counts[first + 1 : first + rows] = 0
    slots.body_nbytes[first] = 99
    slots.flags[first] = 5
    slots.received_ns[first] = 7
    slots.mark_special(first)


def assert_plain(slots: SlotTable, first: int, count: int) -> None:
    rows = slice(first, first + count)
    assert (slots.row_counts[rows] == 1).all()
    assert (slots.bodies_nbytes[rows] == BODY).all()
    assert not slots.flag_column[rows].any()
    assert not slots.receiveds_ns[rows].any()


@pytest.mark.parametrize("held", [False, True])
def test_defaults_are_back_when_a_special_request_is_gone(*, held: bool) -> None:
    slots = table()
    other = slots.lease(1)
    first = slots.lease(2)
    make_special(slots, first, 2)
    assert slots.special[0]
    if held:
        slots.hold_for_batch(first, 2)
    answer(slots, first)
    if held:
        assert slots.rows[first] == 2
        slots.drop_batch(first, 2)
    assert_plain(slots, first, 2)
    assert slots.is_live(other)


def test_a_batch_partly_answered_restores_the_answered_rows_only() -> None:
    slots = table()
    first, second = slots.lease(2), slots.lease(2)
    make_special(slots, first, 2)
    make_special(slots, second, 2)
    slots.hold_for_batch(0, 4)
    answer(slots, first)
    slots.drop_batch(0, 4)
    assert_plain(slots, first, 2)
    assert slots.rows[second] == 2
    assert slots.body_nbytes[second] == 99


def test_a_block_is_plain_again_when_it_is_opened_again() -> None:
    slots = table(blocks=1)
    make_special(slots, slots.lease(1), 1)
    slots.seal(0)
    answer(slots, 0)
    slots.lease(1)
    assert not slots.special[0]


def test_a_block_that_is_free_is_told_of() -> None:
    slots = table()
    freed: list[tuple[int, int]] = []
    slots.on_block_free = lambda first, rows: freed.append((first, rows))
    slots.lease_run(2)
    answer(slots, 0)
    assert not freed
    answer(slots, 1)
    slots.seal(slots.lease(1))
    answer(slots, 0)
    assert freed == [(0, BLOCK), (0, BLOCK)]


def test_a_plain_request_was_received_when_it_was_ready() -> None:
    slots = table()
    slot = slots.lease(1)
    slots.ready_ns[slot] = 11
    assert slots.received_at(slot) == 11
    slots.received_ns[slot] = 7
    assert slots.received_at(slot) == 7


# ---------------------------------------------------------------- finding


def test_requests_are_found_by_session_and_id() -> None:
    slots = table()
    for session, rid in [(0, 5), (1, 5), (0, 6), (0, 2**64 - 1)]:
        slot = slots.lease(1)
        slots.session[slot], slots.rid[slot] = session, rid
    assert slots.find(0, 5).tolist() == [0]
    assert slots.find(0, 4, 3).tolist() == [0, 2]
    assert slots.find(1, 6).tolist() == []
    assert slots.find(0, 2**64 - 1).tolist() == [3]
    assert slots.live_requests(0).tolist() == [0, 2, 3]
    assert slots.live_requests().tolist() == [0, 1, 2, 3]
    answer(slots, 0)
    assert slots.find(0, 5).tolist() == []


def test_rows_inside_a_request_are_not_found() -> None:
    slots = table()
    first = slots.lease(3)
    slots.rids[first : first + 3] = 9
    make_special(slots, first, 3)
    assert slots.find(0, 9).tolist() == [first]
    assert slots.live_requests().tolist() == [first]
    assert slots.live_in(0, 3).tolist() == [first]


# ---------------------------------------------------------------- against a model


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


def test_a_request_larger_than_a_block_never_gets_slots_of_the_next_one() -> None:
    table = SlotTable(8, 4)
    with pytest.raises(AssertionError, match="this is a bug"):
        table.lease(5)
    assert table.leased == 0
