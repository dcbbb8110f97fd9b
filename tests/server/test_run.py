"""The program around a server: exit status, logging, scripts that a worker imports again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, WAIT_S

SCRIPT = """
import trioserve

class Double(trioserve.Model):
    inputs = {"x": trioserve.Tensor("f4", [-1, 2])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 2])}

    def infer(self, x):
        return 2 * x

print("imported")
trioserve.run(Double(), port=%d)
print("ended")
"""


def started(script: Path, *arguments: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in [str(ROOT), *sys.path] if path)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


@pytest.mark.e2e
@pytest.mark.slow
def test_a_script_without_a_guard_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """The worker imports it again, up to the call of `run`; the script goes on where the server has ended."""
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT % 0)
    with started(script) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "server_ready":
                break
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert sorted(out.split()) == ["ended", "imported", "imported"]
    assert [json.loads(line)["event"] for line in errors.splitlines()] == [
        "server_draining",
        "server_stopped",
    ]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_server_that_cannot_start_says_why_and_exits_with_1(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    with socket.create_server(("127.0.0.1", 0)) as other:
        script.write_text(SCRIPT % other.getsockname()[1])
        with started(script) as process:
            _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    [line] = errors.splitlines()
    assert json.loads(line)["event"] == "server_failed"
    assert "in use" in json.loads(line)["reason"]
