"""`trioserve replay`: deterministic, comparable, and clear about what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trioserve import cli
from trioserve.observability import TrafficRecorder

MS = 1_000_000
ABOUT: dict[str, Any] = {
    "service": {"mean_ns": {"1": 5 * MS, "32": 11 * MS}, "deviation_ns": {"1": MS // 10, "32": MS // 10}},
    "max_rows": 32,
    "sla_ns": 50 * MS,
}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Two seconds of Poisson traffic at four fifths of the capacity."""
    rng = np.random.default_rng(1)
    recorder = TrafficRecorder(100_000)
    for at_ns in np.cumsum(rng.exponential(1e9 / 2_300, 4_600)).astype(np.int64).tolist():
        recorder.offered(at_ns, 1, 50 * MS)
    path = tmp_path / "sleeper.npz"
    recorder.record("sleeper", ABOUT).save(path)
    return path


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert cli.main(["replay", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_policies_are_compared(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(record)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("sleeper: 4,600 requests in ")
    assert output[1].split()[0] == "policy"
    assert [line.split()[0] for line in output[3:]] == ["adaptive", "greedy", "fixed:2"]


def test_the_same_record_gives_the_same_batches(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (lines(capsys, str(record), "--policy", "adaptive") for _ in range(2))
    assert first == second
    other = lines(capsys, str(record), "--policy", "adaptive", "--seed", "1")
    assert other[0]["batches"] != first[0]["batches"]
    assert first[0]["in_time"] > 0.99 * 4_600
    assert sum(rows for _, rows in first[0]["batches"]) == 4_600 - first[0]["shed"] - first[0]["dropped"]


def test_rows_of_a_request_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = TrafficRecorder(10)
    recorder.offered(0, 2, 50 * MS, rows=3)
    path = tmp_path / "few.npz"
    recorder.record("few", ABOUT).save(path)
    assert lines(capsys, str(path), "--policy", "greedy")[0]["rows"] == 6


def test_classes_count_where_there_is_an_admission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice of what can be served; every other request may be shed."""
    at_ns = np.arange(2_000, dtype=np.int64) * MS // 6
    found = []
    for sheddable in (0, 3):
        recorder = TrafficRecorder(10_000)
        for number, moment_ns in enumerate(at_ns.tolist()):
            recorder.offered(moment_ns, 1, 50 * MS, klass=sheddable * (number % 2))
        path = tmp_path / f"{sheddable}.npz"
        recorder.record("many", ABOUT).save(path)
        found.append(lines(capsys, str(path), "--policy", "adaptive", "--policy", "greedy"))
    (plain, greedy), (classes, same) = found
    assert same == greedy
    assert classes["batches"] != plain["batches"]


def test_an_empty_record_is_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.npz"
    TrafficRecorder(10).record("none", ABOUT).save(path)
    assert cli.main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.startswith("none: 0 requests in 0.0 s\n")


@pytest.mark.parametrize("policy", ["best", "fixed:x"])
def test_an_unknown_policy_is_named(record: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    assert cli.main(["replay", str(record), "--policy", policy]) == 1
    assert "expected" in capsys.readouterr().err


def test_what_is_no_record_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, bare = tmp_path / "bad.npz", tmp_path / "bare.npz"
    bad.write_bytes(b"x")
    TrafficRecorder(1).record("bare", {}).save(bare)
    for path, words in ((bad, "not a record"), (bare, "lacks"), (tmp_path / "nowhere", "No such file")):
        assert cli.main(["replay", str(path)]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert "pickle" not in error
        assert error.count("\n") == 1
