from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import trio

from trioserve_tools.bench._subjects import SubjectFailed, bare, mosec, trioserve
from trioserve_tools.process_figures import is_alive

pytestmark = pytest.mark.slow


async def test_a_bare_server_is_there_and_gone_after() -> None:
    with trio.fail_after(30):
        async with bare("echo", "w1")() as subject:
            with socket.create_connection(("127.0.0.1", subject.port), timeout=5) as sock:
                sock.sendall(bytes(544))
                assert len(sock.recv(1000)) == 288
            assert set(subject.cpu_ns()) == {"front", "workers"}
            assert subject.cpu_ns()["front"] > 0
    assert not is_alive(subject.pid)


async def test_a_bare_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with trio.fail_after(30), pytest.raises(SubjectFailed, match="bare echo did not start"):
        async with bare("echo", "w1")():
            raise AssertionError


@pytest.mark.e2e
@pytest.mark.parametrize("work", ["w1", "w2", "w3"])
async def test_the_server_answers_as_the_plan_expects(work: str) -> None:
    with trio.fail_after(60):
        async with trioserve(work)() as subject:
            plan = subject.plan
            with socket.create_connection(("127.0.0.1", subject.port), timeout=5) as sock:
                sock.sendall(plan.preamble + plan.requests[0].tobytes())
                head = sock.recv(32, socket.MSG_WAITALL)
                sock.recv(int.from_bytes(head[4:8], "little"), socket.MSG_WAITALL)
                reply = sock.recv(plan.reply_nbytes, socket.MSG_WAITALL)
            assert len(reply) == plan.reply_nbytes
            assert reply[3] == 0x20


async def test_a_peer_that_does_not_start(tmp_path: Path) -> None:
    """The file of the peer, in an environment without mosec: it ends at once."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    with trio.fail_after(30), pytest.raises(SubjectFailed, match="mosec did not start"):
        async with mosec("w1", str(fake))():
            raise AssertionError


PEER = """\
#!{python}
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


async def test_a_peer_that_answers(tmp_path: Path) -> None:
    """Any server of the peer's kind will do."""
    fake = tmp_path / "python"
    fake.write_text(PEER.format(python=sys.executable))
    fake.chmod(0o755)
    with trio.fail_after(30):
        async with mosec("w1", str(fake))() as subject:
            assert subject.plan.kind == "http"
            assert is_alive(subject.pid)
    assert not is_alive(subject.pid)
