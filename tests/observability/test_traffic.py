"""Recorded traffic: what goes in comes out, bounded, and no file does harm."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.observability import ARRIVAL, TrafficError, TrafficRecord, TrafficRecorder
from trioserve.observability import _traffic as traffic


def test_runs_become_rows() -> None:
    recorder = TrafficRecorder(100)
    recorder.offered(1_000, 2, 50, sessions=7)
    recorder.offered(1_500, 3, np.array([1, 2, 3], np.int64), rows=4, klass=np.array([0, 1, 2], np.uint8))
    arrivals = recorder.record("m", {}).arrivals
    assert arrivals["at_ns"].tolist() == [0, 0, 500, 500, 500]
    assert arrivals["timeout_ns"].tolist() == [50, 50, 1, 2, 3]
    assert arrivals["rows"].tolist() == [1, 1, 4, 4, 4]
    assert arrivals["session"].tolist() == [7, 7, 0, 0, 0]
    assert arrivals["klass"].tolist() == [0, 0, 0, 1, 2]


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(0, 200), st.integers(1, 16))
def test_the_bound_is_kept_and_the_rest_is_counted(runs: list[int], bound: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic, "CHUNK_REQUESTS", chunk)
        recorder = TrafficRecorder(bound)
        offered: list[int] = []
        for number, count in enumerate(runs):
            timeouts = np.arange(len(offered), len(offered) + count, dtype=np.int64)
            recorder.offered(number, count, timeouts)
            offered += timeouts.tolist()
        trace = recorder.record("m", {})
    assert trace.arrivals["timeout_ns"].tolist() == offered[:bound]
    assert trace.dropped == max(0, len(offered) - bound)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    recorder = TrafficRecorder(10)
    recorder.offered(5, 3, 20)
    saved = recorder.record("double", {"max_rows": 32})
    saved.save(tmp_path / "t.npz")
    loaded = TrafficRecord.load(tmp_path / "t.npz")
    assert loaded.model == "double"
    assert loaded.about == {"max_rows": 32}
    assert loaded.arrivals.tobytes() == saved.arrivals.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    trace = TrafficRecorder(1).record("m", {"not": object()})
    with pytest.raises(TypeError):
        trace.save(tmp_path / "t.npz")
    assert not list(tmp_path.iterdir())


def _archive(**members: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **members)  # type: ignore[arg-type]
    return file.getvalue()


HEAD = np.frombuffer(b'{"version": 1}', np.uint8)
UNORDERED = np.zeros(2, ARRIVAL)
UNORDERED["at_ns"] = [5, 4]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an archive",
        pickle.dumps([1, 2]),
        _archive(head=HEAD),
        _archive(head=HEAD, arrivals=np.zeros(3)),
        _archive(head=HEAD, arrivals=UNORDERED),
        _archive(head=np.frombuffer(b'{"version": 2}', np.uint8), arrivals=np.zeros(0, ARRIVAL)),
        _archive(head=np.frombuffer(b"{", np.uint8), arrivals=np.zeros(0, ARRIVAL)),
        _archive(head=np.frombuffer(b"[]", np.uint8), arrivals=np.zeros(0, ARRIVAL)),
        _archive(head=np.array([object()]), arrivals=np.zeros(0, ARRIVAL)),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(data)
    with pytest.raises(TrafficError, match=r"bad\.npz"):
        TrafficRecord.load(path)
