"""What the tests of the slot table have in common."""

from __future__ import annotations

from trioserve.memory import SlotTable

BLOCK = 4
BODY = 24


def table(blocks: int = 3) -> SlotTable:
    return SlotTable(blocks * BLOCK, BLOCK, BODY)


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


def answer(slots: SlotTable, first: int) -> None:
    """Ends a request that is alive."""
    assert slots.claim(first)
