from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from trioserve_tools.bench import __main__ as bench
from trioserve_tools.bench._client import LoadFailed
from trioserve_tools.bench._figures import Figure, PartResult
from trioserve_tools.bench._measure import Spread
from trioserve_tools.bench._scenarios import Setting
from trioserve_tools.targets import Target


@pytest.mark.slow
@pytest.mark.e2e
def test_one_comparison_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seconds", "0.1", "--repeat", "1", "--only", "w1-1x1", "--peer", "none"]
    arguments += ["--cache", str(tmp_path / "cache"), "--json", str(tmp_path / "out.json")]
    assert bench.main(arguments) == 0
    said = capsys.readouterr()
    assert "w1-1x1: p50 over echo's" in said.out
    assert "round 1 of 1, trioserve" in said.err
    written = json.loads((tmp_path / "out.json").read_text())
    assert set(written["samples"]["w1-1x1"]) == {"trioserve", "echo"}
    assert "--only w1-1x1" in written["command"]


def part(*values: float) -> PartResult:
    return PartResult("memory", "at rest", [Figure("a", "MB", Target("<=", 10), Spread(values))])


@pytest.mark.parametrize(
    ("value", "options", "status"),
    [(9.0, ["--threshold"], 0), (11.0, ["--threshold"], 1), (11.0, [], 0)],
)
def test_missing_a_target_fails_if_asked_to(
    monkeypatch: pytest.MonkeyPatch, value: float, options: list[str], status: int
) -> None:
    async def measure(setting: Setting) -> PartResult:
        await trio.lowlevel.checkpoint()
        return part(value)

    monkeypatch.setitem(bench.PARTS, "memory", measure)
    assert bench.main(["--only", "memory", "--quiet", "--load", "python", *options]) == status


def test_a_run_that_fails_is_not_a_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(setting: Setting) -> PartResult:
        await trio.lowlevel.checkpoint()
        raise ExceptionGroup("", [LoadFailed("a wrong answer")])

    monkeypatch.setitem(bench.PARTS, "memory", measure)
    assert bench.main(["--only", "memory", "--quiet", "--load", "python"]) == 1
    assert "bench: memory: a wrong answer" in capsys.readouterr().err


def test_a_peer_that_is_asked_for_must_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--peer", "mosec", "--peer-python", "/bin/false", "--load", "python"]) == 1
    assert "/bin/false: mosec is not installed there" in capsys.readouterr().err
