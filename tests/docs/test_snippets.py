"""What the documentation shows is run, against servers that are started as it says. Real processes and sockets."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = ROOT / "docs" / "snippets"
START_S, RUN_S = 60.0, 60.0

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("", "protocol", "tools")),
    }


def served(program: Path, folder: Path) -> Iterator[int]:
    """Run a program that serves on port 7001 on a free port instead; yield the port, then stop it."""
    source = program.read_text(encoding="utf-8")
    assert source.count("7001") == 1
    copy = folder / program.name
    copy.write_text(source.replace("7001", "0"), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(copy)], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        yield ready_port(iter(process.stderr.readline, ""))
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=START_S)
    assert process.returncode == 0, rest


def ready_port(lines: Iterator[str]) -> int:
    """The TCP port in the log event that says that the server is ready."""
    seen = []
    for line in lines:
        seen.append(line)
        if line.startswith("{") and (event := json.loads(line))["event"] == "server_ready":
            [address] = event["addresses"]
            return int(address.rpartition(":")[2])
    raise AssertionError(f"the server ended before it was ready: {''.join(seen)}")


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    yield from served(SNIPPETS / "double.py", tmp_path_factory.mktemp("double"))


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    yield from served(ROOT / "examples" / "scale.py", tmp_path_factory.mktemp("scale"))


def run_shell(script: Path, port: int) -> str:
    for program in ("nc", "xxd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    text = script.read_text(encoding="utf-8").replace("7001", str(port))
    command = ["bash", "-euo", "pipefail", "-c", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    return done.stdout


def without_times(dump: str) -> str:
    """A hex dump of one reply with the bytes at 20..23 and 28..31, which are times, and the text column cut out."""
    lines = [line[:49].split() for line in dump.splitlines()]
    lines[1][3:5] = ["time"]
    lines[1][-2:] = ["time"]
    return "\n".join(" ".join(words) for words in lines)


def test_a_request_by_hand(double: int) -> None:
    shown = (SNIPPETS / "by_hand.out").read_text(encoding="utf-8")
    assert without_times(run_shell(SNIPPETS / "by_hand.sh", double)) == without_times(shown)


def test_a_ping_by_hand(double: int) -> None:
    answer = run_shell(SNIPPETS / "ping.sh", double)
    assert answer.startswith("00000000: 5453 0133")
    assert re.fullmatch(r"(00000\d+0: .*\n){2}", answer)
