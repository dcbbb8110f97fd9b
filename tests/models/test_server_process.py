"""A server in a process of its own is started, waited for and stopped; what goes wrong is said with its last words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trio
import trio.testing

from trioserve_tools import server_process
from trioserve_tools.server_process import ServerFailed, ServerLog, running_server

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_log_waits_for_the_event_that_says_ready() -> None:
    log = ServerLog()
    for line in ("", "not JSON", "[1]", '{"event": "worker_ready"}'):
        log.line(line)
    assert not log.ready.is_set()
    log.line('{"event": "server_ready", "addresses": ["tcp://127.0.0.1:1", "unix:///x"]}')
    assert log.ready.is_set()
    assert log.address == "tcp://127.0.0.1:1"
    assert len(log.tail) == 5


async def test_log_is_cut_into_lines_whatever_the_chunks() -> None:
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    log = ServerLog()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.follow, receiver)
        for chunk in (b"a", b"b\nc", b"\n", b"unfinished"):
            await sender.send_all(chunk)
        await sender.aclose()
    assert list(log.tail) == ["ab", "c"]
    assert log.ready.is_set()
    assert log.address == ""


@pytest.mark.slow
@pytest.mark.e2e
async def test_server_is_up_inside_and_gone_after() -> None:
    with trio.fail_after(60):
        async with running_server(EXAMPLES / "scale.py") as (url, pid):
            host, port = re.fullmatch(r"tcp://(.*):(\d+)", url).groups()
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.aclose()
            os.kill(pid, 0)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.e2e
async def test_server_that_cannot_start(tmp_path: Path) -> None:
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(ServerFailed, match="an empty folder")):
        async with running_server(tmp_path):
            raise AssertionError


@pytest.mark.slow
@pytest.mark.e2e
async def test_server_that_was_killed() -> None:
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(ServerFailed, match="status -9")):
        async with running_server(EXAMPLES / "scale.py") as (_, pid):
            os.kill(pid, 9)


@pytest.mark.slow
@pytest.mark.e2e
async def test_cancelling_ends_the_server() -> None:
    pids: list[int] = []
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with running_server(EXAMPLES / "scale.py") as (_, pid):
            pids.append(pid)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.slow
@pytest.mark.e2e
async def test_server_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "STOP_TIMEOUT_S", 0.0)
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(ServerFailed, match="still running")):
        async with running_server(EXAMPLES / "scale.py"):
            pass
