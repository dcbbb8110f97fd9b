"""A worker that is ready to take over, and what an operator sees of the processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import ServerProcess, infer, row, serving, wait_for
from trioserve import cli
from trioserve_protocol import ErrorCode

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving("scale", workers={"spare": 1}) as server:
        server.wait_event("worker_ready", 2)
        server.idle_fds = server.fds()
        yield server


def with_spare(server: ServerProcess) -> dict[str, Any]:
    """What the server says of its executor once that has a spare."""

    def found() -> dict[str, Any] | None:
        [worker] = server.statistics()["workers"]
        return worker if worker["spare_pid"] and worker["ready"] else None

    worker = wait_for(found)
    assert worker is not None
    return worker


def test_the_spare_takes_over(server: ServerProcess) -> None:
    before = with_spare(server)
    with server.connect() as wire:
        wire.bind("scale")
        os.kill(before["pid"], signal.SIGKILL)
        wire.send(*(infer(rid, row(rid)) for rid in range(1, 33)))
        for event in wire.receive_many(32):
            assert getattr(event, "code", ErrorCode.WORKER_LOST) == ErrorCode.WORKER_LOST
        wait_for(lambda: server.statistics()["workers"][0]["starts"] == 2)
        after = server.statistics()["workers"][0]
        assert (after["pid"], after["starts"], after["state"]) == (before["spare_pid"], 2, "ready")
        assert with_spare(server)["spare_pid"] not in {before["pid"], after["pid"]}
    server.assert_at_rest()


def test_what_an_operator_sees(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    worker = with_spare(server)
    [address] = server.addresses
    assert cli.main(["status", address]) == 0
    _, _, *lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith(f"server {server.pid} serving ")
    assert lines[1].startswith(f"└─ executor {worker['pid']} ready ")
    assert lines[2].startswith(f"└─ spare {worker['spare_pid']} ready ")
    assert cli.main(["status", "--json", address]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["pid"] == worker["pid"]
    assert cli.main(["status", "tcp://127.0.0.1:1"]) == 1
    assert Path(f"/proc/{worker['pid']}/comm").read_text() == "ts-executor\n"
    assert Path(f"/proc/{worker['pid']}/cmdline").read_bytes().split(b"\0")[-2] == b"executor:scale"
