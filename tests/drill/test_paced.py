from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import trio

from trioserve_protocol import ErrorCode, RequestClass
from trioserve_tools import compiled
from trioserve_tools.drill import _paced
from trioserve_tools.drill._drill import NotRun
from trioserve_tools.drill._ledger import input_rows, output_rows
from trioserve_tools.drill._paced import (
    FellBehind,
    kept_pace,
    merged,
    poisson,
    preambles,
    run_script,
    template,
)
from trioserve_tools.drill._script import Loop, Schedule, Script, quantile
from trioserve_tools.server_process import ServerProcess

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, compiled.COMPILERS)), reason="no C compiler")

RIDS = np.arange(1, 5, dtype=np.uint64)
DOUBLES = [
    template(row.tobytes(), answer.tobytes())
    for row, answer in zip(input_rows(RIDS), output_rows(RIDS), strict=True)
]


def even(count: int, every_s: float, connections: int = 2, templates: int = 4) -> Schedule:
    number = np.arange(count)
    return Schedule(
        (number * every_s * 1e9).astype(np.int64),
        (number % connections).astype(np.uint32),
        (number % templates).astype(np.uint32),
    )


def test_arrivals_depend_on_the_seed_alone() -> None:
    first, again, other = (
        poisson([(1000, 1.0), (100, 1.0)], 4, 3, random.Random(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.times_ns, again.times_ns)
    assert first.times_ns.tolist() != other.times_ns.tolist()
    assert (np.diff(first.times_ns) >= 0).all()
    early = int((first.times_ns < 1e9).sum())
    assert 850 < early < 1150
    assert 60 < len(first.times_ns) - early < 140
    assert set(first.connections.tolist()) == {0, 1, 2, 3}
    assert set(first.templates.tolist()) == {0, 1, 2}


def test_schedules_at_the_same_time() -> None:
    both = merged([even(3, 0.002, 1, 1), Schedule(*(np.array([x]) for x in (1_000_000, 7, 9)))])
    assert both.times_ns.tolist() == [0, 1_000_000, 2_000_000, 4_000_000]
    assert both.connections.tolist() == [0, 7, 0, 0]
    assert both.templates.tolist() == [0, 9, 0, 0]


def test_requests_carry_class_deadline_and_tenant() -> None:
    frame = template(bytes(8), deadline_ms=20, request_class=RequestClass.SHEDDABLE).frame
    assert int.from_bytes(frame[20:24], "little") == 20_000
    assert frame[18] & 3 == RequestClass.SHEDDABLE
    plain, first, second, third = *preambles("m", 1), *preambles("m", 3, ["a", "b"])
    assert b"a" in first
    assert first == third
    assert first != second
    assert plain not in (first, second)


async def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(_paced, "PROGRAMS", tmp_path)
    with pytest.raises(NotRun, match="no C compiler"):
        await run_script(Script(preambles("m", 1), DOUBLES, even(1, 0.1)), 1)


@needs_compiler
@pytest.mark.slow
@pytest.mark.e2e
async def test_a_run_keeps_to_its_schedule(server: ServerProcess) -> None:
    script = Script(preambles("double", 2, ["a", "b"]), DOUBLES, even(50, 0.002))
    with trio.fail_after(20):
        record = await run_script(script, server.port)
    assert len(record) == 50
    assert record.ok.all()
    assert (record.wrong, record.repeated, record.unanswered) == (0, 0, 0)
    np.testing.assert_array_equal(record.planned_ns - record.start_ns, script.plan.times_ns)
    assert (record.sent_ns >= record.planned_ns).all()
    assert (record.answered_ns > record.sent_ns).all()
    assert record.connections.tolist() == [0, 1] * 25
    assert record.templates.tolist() == [0, 1, 2, 3] * 12 + [0, 1]
    assert len(kept_pace(record, 10_000)) == 50
    with pytest.raises(FellBehind, match="fell behind its schedule"):
        kept_pace(record, -1)


@needs_compiler
@pytest.mark.slow
@pytest.mark.e2e
async def test_a_closed_run_thinks(server: ServerProcess) -> None:
    script = Script(preambles("double", 2), DOUBLES, Loop(0.3, outstanding=3, think_s=0.02))
    with trio.fail_after(20):
        record = await run_script(script, server.port)
    assert record.ok.all()
    assert record.wrong == 0
    assert 6 <= len(record) <= 6 * 16
    for connection in (0, 1):
        mine = record.only(record.connections == connection)
        assert (mine.planned_ns[3:] >= np.sort(mine.answered_ns)[: len(mine) - 3] + 20_000_000).all()


@needs_compiler
@pytest.mark.slow
@pytest.mark.e2e
async def test_answers_are_compared_and_errors_written_down(server: ServerProcess) -> None:
    lies = [template(input_rows(RIDS)[0].tobytes(), b"nonsense"), template(bytes(8))]
    with trio.fail_after(20):
        record = await run_script(Script(preambles("double", 1), lies, even(4, 0.001, 1, 2)), server.port)
        with pytest.raises(ConnectionError, match="preamble: status 5"):
            await run_script(Script(preambles("nobody", 1), lies, even(1, 0.001, 1, 1)), server.port)
    assert record.status.tolist() == [0, ErrorCode.INVALID_SIZE] * 2
    assert record.wrong == 2


@needs_compiler
@pytest.mark.slow
@pytest.mark.e2e
async def test_a_deadline_counts_from_the_planned_time(server: ServerProcess) -> None:
    slow = template(np.full(1, 0.3, np.float32).tobytes())
    fast = template(np.zeros(1, np.float32).tobytes(), deadline_ms=50)
    which = np.array([0, 1, 1], np.uint32)
    schedule = Schedule(np.array([0, 10_000_000, 20_000_000]), np.zeros(3, np.uint32), which)
    with trio.fail_after(20):
        record = await run_script(Script(preambles("slow", 1), [slow, fast], schedule), server.port)
    assert record.expired.tolist() == [False, True, True]
    assert quantile(record.only(record.expired).latency_ms, 0) >= 50
