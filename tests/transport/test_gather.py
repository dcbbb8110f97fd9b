"""Requests of many connections that are received into the rows of one array."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trioserve.transport._gather import COLUMNS_FROM, Gather
from trioserve_protocol import Flag, FrameType, frame, frame_bytes

HANDLE = 3
BODY_NBYTES = 16
COUNT = COLUMNS_FROM + 2


def gathered(*frames: bytes) -> Gather:
    """A gather that has received a frame from each of as many connections."""
    lane: Any = SimpleNamespace(body_nbytes=BODY_NBYTES)
    gather = Gather(lane, HANDLE, len(frames))
    for view, data in zip(gather.views, frames, strict=True):
        view[:] = data
    gather.peers = [SimpleNamespace(session=SimpleNamespace(last_rid=10)) for _ in frames]  # type: ignore[misc]
    return gather


def request(
    rid: int, *, flags: int = 0, handle: int = HANDLE, rows: int = 1, kind: int = FrameType.INFER
) -> bytes:
    payload = np.full(4, rid, np.float32).tobytes()
    return frame_bytes(
        frame(
            kind,
            rid=rid,
            handle=handle,
            flags=Flag.END | flags,
            timeout_us=rid * 7,
            rows=rows,
            payload=payload,
        )
    )


def test_plain_requests_become_one_run_in_their_order() -> None:
    gather = gathered(*(request(rid, flags=rid & 3) for rid in range(11, 11 + COUNT)))
    peers = list(gather.peers)
    taken, run, others = gather.take()
    assert (taken, others, gather.peers) == (peers, [], [])
    assert run is not None
    assert (run.count, run.handle, run.rows, run.meta) == (COUNT, HANDLE, 1, b"")
    assert run.rids.tolist() == list(range(11, 11 + COUNT))
    assert run.timeouts_us.tolist() == [7 * rid for rid in run.rids.tolist()]
    assert run.payload.view(np.float32)[:, 0].tolist() == run.rids.tolist()


@pytest.mark.parametrize(
    "odd",
    [
        request(99, flags=Flag.SAMPLED),
        request(99, flags=Flag.NOREPLY),
        request(99, handle=HANDLE + 1),
        request(99, rows=2),
        request(99, kind=FrameType.INFER_MANY),
        request(9),
    ],
    ids=["sampled", "noreply", "another handle", "rows", "infer_many", "an id not above the last"],
)
class TestOdd:
    """Frames of the same length that are something else."""

    def test_one_of_many_stands_apart(self, odd: bytes) -> None:
        gather = gathered(odd, *(request(rid) for rid in range(11, 10 + COUNT)))
        peers = list(gather.peers)
        taken, run, others = gather.take()
        assert taken == peers[1:]
        assert run is not None
        assert run.count == COUNT - 1
        assert [(peer, bytes(view)) for peer, view in others] == [(peers[0], odd)]

    def test_nothing_else_is_no_run(self, odd: bytes) -> None:
        gather = gathered(*[odd] * COUNT)
        peers = list(gather.peers)
        taken, run, others = gather.take()
        assert (taken, run) == ([], None)
        assert [peer for peer, _ in others] == peers


def test_a_few_are_taken_one_by_one() -> None:
    gather = gathered(*(request(rid) for rid in range(11, 10 + COLUMNS_FROM)))
    peers = list(gather.peers)
    assert gather.take() == ([], None, list(zip(peers, gather.views, strict=False)))
