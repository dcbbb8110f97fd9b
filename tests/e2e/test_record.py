"""A server's traffic, recorded and replayed by the command that users have."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.harness import ServerProcess, infer, row
from trioserve import cli
from trioserve.observability import TrafficRecord
from trioserve_protocol import Result

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_record_is_written_at_the_end_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ServerProcess("scale", record=str(tmp_path / "records"), record_requests=50)
    try:
        server.wait_ready()
        with server.connect() as wire:
            wire.bind("scale")
            for rid in range(1, 61):
                wire.send(infer(rid, row(rid)))
                assert isinstance(wire.receive(), Result)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    finally:
        server.close()
    [path] = (tmp_path / "records").iterdir()
    record = TrafficRecord.load(path)
    assert (record.model, len(record.arrivals), record.dropped) == ("scale", 50, 10)
    assert cli.main(["replay", str(path), "--policy", "adaptive", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["in_time"] == facts["rows"] == 50


def test_a_directory_that_cannot_be_is_said_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    server = ServerProcess("scale", record=str(tmp_path / "file"))
    try:
        assert server.process.wait(20) == 1
        assert server.events("server_failed")
    finally:
        server.close()
