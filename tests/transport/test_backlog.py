"""Unsent bytes: in order, whole frames, urgent ones between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.transport import _backlog as module
from trioserve.transport._backlog import Backlog
from trioserve_protocol import Connection, FrameType, Pong, Result, Role, frame, frame_bytes, pong_frame


def result(rid: int, nbytes: int) -> bytes:
    return frame_bytes(
        frame(FrameType.RESULT, rid=rid, flags=8, rows=1, payload=bytes([rid % 251]) * (nbytes * 8))
    )


def drained(backlog: Backlog, steps: list[int]) -> bytes:
    """Everything in it, taken off in steps, the last of them repeated."""
    out = b""
    index = 0
    while backlog.nbytes:
        nbytes = min(steps[min(index, len(steps) - 1)], len(backlog.head))
        out += backlog.head[:nbytes]
        backlog.advance(nbytes)
        index += 1
    return out


def test_what_was_sent_already_is_not_kept() -> None:
    backlog = Backlog()
    backlog.keep(b"abcdef", 2)
    backlog.keep(bytearray(b"gh"))
    assert backlog.nbytes == 6
    assert drained(backlog, [1]) == b"cdefgh"


def test_what_is_kept_is_a_copy() -> None:
    source = bytearray(b"abc")
    backlog = Backlog()
    backlog.keep(memoryview(source))
    source[:] = b"xyz"
    assert drained(backlog, [8]) == b"abc"


def test_an_urgent_frame_has_something_to_pass() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        Backlog().keep_urgent(b"x")


def test_urgent_frames_keep_their_order_and_wait_for_the_frame_being_sent() -> None:
    backlog = Backlog()
    backlog.keep(b"first")
    backlog.keep(b"second")
    backlog.keep_urgent(b"1")
    backlog.keep_urgent(b"2")
    backlog.advance(2)
    backlog.keep_urgent(b"3")
    assert drained(backlog, [99]) == b"rst123second"


def test_urgent_frames_keep_their_order_also_around_one_that_is_half_sent() -> None:
    backlog = Backlog()
    backlog.keep(b"a")
    backlog.keep_urgent(b"12")
    backlog.keep_urgent(b"34")
    backlog.advance(1)
    backlog.advance(1)
    backlog.keep_urgent(b"56")
    backlog.keep(b"b")
    assert drained(backlog, [99]) == b"23456b"


def test_a_large_block_of_frames_is_cut_where_frames_end() -> None:
    """So that an urgent frame waits for a quarter of a megabyte and not for all of it."""
    backlog = Backlog()
    frames = [result(rid, 4096) for rid in range(1, 41)]
    backlog.keep(b"".join(frames), 5)
    backlog.keep_urgent(pong_frame(9))
    position = drained(backlog, [1 << 20]).index(pong_frame(9))
    assert position <= module.PIECE_NBYTES
    assert (position + 5) % len(frames[0]) == 0


def test_a_frame_larger_than_a_piece_stays_whole() -> None:
    backlog = Backlog()
    large = result(1, 50_000)
    backlog.keep(large + result(2, 1), 0)
    assert len(backlog.head) == len(large)


blocks = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=5)


@given(
    blocks=blocks, steps=st.lists(st.integers(1, 400), min_size=1), sent=st.integers(0, 30), data=st.data()
)
def test_a_client_reads_every_frame_once_whatever_the_kernel_takes(
    blocks: list[list[int]], steps: list[int], sent: int, data: st.DataObject
) -> None:
    """Blocks of frames of many sizes; urgent frames come at any moment; pieces are tiny."""
    whole = module.PIECE_NBYTES
    module.PIECE_NBYTES = 200  # type: ignore[misc]
    try:
        backlog, out, rid, pongs = Backlog(), b"", 0, 0
        for block in blocks:
            frames = b""
            for nbytes in block:
                rid += 1
                frames += result(rid, nbytes)
            first = sent if not out and not backlog.nbytes else 0
            out += frames[:first]
            backlog.keep(frames, first)
            for step in data.draw(st.lists(st.sampled_from([0, *steps]), max_size=4)):
                if not backlog.nbytes:
                    continue
                if not step:
                    pongs += 1
                    backlog.keep_urgent(pong_frame(pongs))
                    continue
                nbytes = min(step, len(backlog.head))
                out += backlog.head[:nbytes]
                backlog.advance(nbytes)
        out += drained(backlog, steps)
    finally:
        module.PIECE_NBYTES = whole  # type: ignore[misc]
    events, consumed = Connection(Role.CLIENT, vector_from=1 << 30).receive(memoryview(out))
    assert consumed == len(out)
    assert [event.rid for event in events if isinstance(event, Result)] == list(range(1, rid + 1))
    assert [event.rid for event in events if isinstance(event, Pong)] == list(range(1, pongs + 1))
    results = [event for event in events if isinstance(event, Result)]
    assert all(bytes(event.payload).count(event.rid % 251) == len(event.payload) for event in results)
