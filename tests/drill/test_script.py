from __future__ import annotations

from pathlib import Path
from struct import unpack_from

import numpy as np

from trioserve_protocol import ErrorCode
from trioserve_tools.drill._script import Loop, Record, Schedule, Script, Template, quantile

MS = 1_000_000


def u32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def record() -> Record:
    """Planned 10 ms apart: in time, late, refused, expired, infeasible, never answered."""
    planned = np.arange(6) * 10 * MS + 500 * MS
    status = [
        ErrorCode.OK,
        ErrorCode.OK,
        ErrorCode.SHED,
        ErrorCode.DEADLINE_IN_QUEUE,
        ErrorCode.DEADLINE_INFEASIBLE,
        -1,
    ]
    return Record(
        planned,
        planned + 2 * MS,
        np.where(np.arange(6) == 5, 0, planned + np.array([5, 51, 1, 50, 1, 0]) * MS),
        np.array(status, np.int32),
        u32(1, 2, 3, 4, 5, 0),
        u32(0, 1, 0, 1, 0, 1),
        u32(0, 0, 1, 1, 2, 2),
        start_ns=500 * MS,
    )


def test_a_script_is_laid_out_as_it_says(tmp_path: Path) -> None:
    schedule = Schedule(np.array([5, 7], np.int64), u32(1, 0), u32(0, 1))
    Script([b"one", b"four"], [Template(b"frame", b"ok"), Template(b"f2")], schedule).write(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    assert unpack_from("<8s6I2Q", data) == (b"TSPACE1\n", 2, 2, 2, 0, 0, 20_000, 0, 0)
    assert data[48:].startswith(u32(3, 4).tobytes() + b"onefour" + u32(5, 7).tobytes() + u32(2, 2).tobytes())
    assert data.endswith(
        b"framef2ok" + np.array([5, 7]).tobytes() + u32(1, 0).tobytes() + u32(0, 1).tobytes()
    )
    Script([b"one"], [Template(b"frame")], Loop(1.5, outstanding=3, think_s=0.002, most=9)).write(
        tmp_path / "s"
    )
    data = (tmp_path / "s").read_bytes()
    assert unpack_from("<8s6I2Q", data)[1:] == (1, 1, 9, 1, 3, 20_000, 2 * MS, 1500 * MS)
    assert data.endswith(b"frame")


def test_a_record_is_read_column_by_column(tmp_path: Path) -> None:
    once = record()
    columns = (once.planned_ns, once.sent_ns, once.answered_ns, once.status, once.reply_us)
    parts = [column.tobytes() for column in (*columns, once.connections, once.templates)]
    (tmp_path / "r").write_bytes(b"".join(parts))
    again = Record.read(tmp_path / "r", 6, wrong=1, repeated=2, start_ns=500 * MS)
    assert (len(again), again.wrong, again.repeated, again.unanswered) == (6, 1, 2, 1)
    np.testing.assert_array_equal(again.latency_ms, once.latency_ms)
    np.testing.assert_array_equal(again.templates, once.templates)


def test_every_request_is_in_one_account() -> None:
    all_ = record()
    assert all_.ok.tolist() == [True, True, False, False, False, False]
    assert all_.refused.tolist() == [False, False, True, False, True, False]
    assert all_.expired.tolist() == [False, False, False, True, False, False]
    assert all_.latency_ms.tolist() == [5, 51, 1, 50, 1, np.inf]
    assert all_.behind_ms.tolist() == [2] * 6
    assert all_.in_time(50).tolist() == [True, False, False, False, False, False]
    assert all_.in_time(51).sum() == 2


def test_parts_of_a_run() -> None:
    part = record().between(0.01, 0.03)
    assert part.status.tolist() == [ErrorCode.OK, ErrorCode.SHED]
    assert part.only(part.ok).connections.tolist() == [1]
    assert (part.wrong, part.start_ns) == (0, 500 * MS)


def test_quantiles() -> None:
    assert quantile(np.arange(100.0), 0.99) == 99
    assert quantile(np.array([1.0, np.inf]), 0.5) == np.inf
    assert np.isnan(quantile(np.array([]), 0.5))
