from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trioserve_protocol import ErrorCode
from trioserve_tools.drill._ledger import Ledger, input_rows, output_rows, status_name


def payload(rids: np.ndarray) -> np.ndarray:
    return output_rows(rids).view(np.uint8).reshape(len(rids), -1)


@given(st.lists(st.integers(1, 2**24), min_size=2, max_size=20, unique=True))
def test_payloads_tell_requests_apart_and_double_exactly(ids: list[int]) -> None:
    rids = np.array(ids, np.uint64)
    rows = input_rows(rids)
    assert len(np.unique(rows, axis=0)) == len(ids)
    assert len(np.unique(output_rows(rids), axis=0)) == len(ids)
    np.testing.assert_array_equal(output_rows(rids).astype(np.float64), rows[:, :64].astype(np.float64) * 2)


def test_every_request_answered_once() -> None:
    ledger = Ledger(10)
    first, second = ledger.issue(3, 0, 0, 100), ledger.issue(2, 1, 0, 110)
    assert first.tolist() == [1, 2, 3]
    assert second.tolist() == [4, 5]
    assert (ledger.unanswered, ledger.room) == (5, 5)
    ledger.result(0, first, payload(first), 150)
    ledger.error(1, 4, 2, ErrorCode.SHED, 160)
    assert (ledger.unanswered, ledger.duplicates, ledger.wrong) == (0, 0, 0)
    assert ledger.statuses() == {"OK": 3, "SHED": 2}
    assert ledger.count(ErrorCode.OK) == 3
    assert (ledger.ended_ns - ledger.sent_ns)[1:6].tolist() == [50, 50, 50, 50, 50]
    assert ledger.order[1:6].tolist() == [1, 2, 3, 1, 2]


def test_what_is_wrong_is_counted() -> None:
    ledger = Ledger(10)
    rids = ledger.issue(3, 0, 0, 100)
    ledger.result(0, rids[:1], payload(rids[1:2]), 150)
    assert ledger.wrong == 1
    ledger.error(0, 1, 1, ErrorCode.SHED, 160)
    assert ledger.duplicates == 1
    ledger.result(1, rids[2:], payload(rids[2:]), 170)
    ledger.error(0, 9, 1, ErrorCode.SHED, 180)
    assert ledger.wrong == 3
    assert ledger.unanswered == 2
    assert ledger.statuses() == {"unanswered": 2, "SHED": 1}


def test_names() -> None:
    assert status_name(0x0108) == "SHED"
    assert status_name(-1) == "unanswered"
    assert status_name(0x7F0E) == "0x7f0e"
