"""The command line finds its subcommands, and loads no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trioserve import cli


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces `check` by a module whose `run` does what the test puts under `run`."""
    behaviour: dict[str, Any] = {"run": lambda _: 0}
    module = SimpleNamespace(
        add_parser=lambda subparsers: subparsers.add_parser("check").add_argument("path"),
        run=lambda args: behaviour["run"](args),  # noqa: PLW0108  looked up when it is called
    )
    monkeypatch.setitem(sys.modules, "trioserve.cli.check", module)
    return behaviour


def test_status_is_that_of_the_subcommand(fake: dict[str, Any]) -> None:
    fake["run"] = lambda args: 7 if args.path == "here" else 0
    assert cli.main(["check", "here"]) == 7
    assert cli.main(["check", "there"]) == 0


def test_arguments_of_the_process_are_the_default(
    fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake["run"] = lambda args: len(args.path)
    monkeypatch.setattr(sys, "argv", ["trioserve", "check", "four"])
    assert cli.main() == 4


def test_interrupt(fake: dict[str, Any]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    fake["run"] = interrupted
    assert cli.main(["check", "x"]) == 130


@pytest.mark.parametrize("arguments, status", [(["--help"], 0), (["frobnicate"], 2), ([], 2)])
def test_help_and_mistakes(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == status
    output = "".join(capsys.readouterr())
    assert "usage: trioserve" in output
    if arguments:
        assert all(command in output for command in cli.COMMANDS)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == "trioserve 1.2.3 of trioserve\n"


PROBE = """
import sys
from trioserve import cli
try:
    cli.main({arguments!r})
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if name in {forbidden!r}), file=sys.stderr)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"]])
def test_help_loads_neither_trio_nor_runtimes(arguments: list[str]) -> None:
    forbidden = ("trio", "anyio", "onnxruntime", "tokenizers", "trioserve.cli.serve")
    assert python(PROBE.format(arguments=arguments, forbidden=forbidden)).stderr.strip() == ""


@pytest.mark.slow
def test_reader_that_goes_away_is_no_traceback(repository: Path) -> None:
    command = f"{sys.executable} -m trioserve.cli models {repository} | true"
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
