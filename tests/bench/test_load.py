"""Both load clients, against servers that answer rightly and wrongly."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trioserve_protocol import ErrorCode, FrameType, bind_frame, error_frame, frame, frame_bytes
from trioserve_tools.bench import load
from trioserve_tools.bench._client import load_client
from trioserve_tools.bench._plan import Plan, fixed_plan, frames_plan, http_plan

pytestmark = pytest.mark.slow
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))
BARE = Callable[[str, int, int], Any]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["c", "python"])
def run(
    request: pytest.FixtureRequest, cache: Path, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    if request.param == "c" and not HAS_COMPILER:
        pytest.skip("no C compiler")
    command = load_client(request.param, cache).command

    def call(plan: Plan, port: int, *options: str) -> subprocess.CompletedProcess[str]:
        plan.write(tmp_path / "plan")
        words = [*command, "--port", str(port), "--plan", str(tmp_path / "plan"), "--warmup", "0.02"]
        return subprocess.run(
            [*words, "--seconds", "0.1", *options], check=False, capture_output=True, text=True, timeout=30
        )

    return call


@pytest.mark.parametrize(
    ("kind", "plan", "connections", "outstanding"),
    [
        ("echo", fixed_plan("w1"), 3, 1),
        ("reflector", frames_plan("w1", compared=False), 1, 1),
        ("reflector", frames_plan("w1", compared=False), 3, 5),
        ("reflector", frames_plan("w3", compared=False), 2, 2),
    ],
)
def test_all_requests_are_answered(
    run: Any, bare_server: BARE, kind: str, plan: Plan, connections: int, outstanding: int
) -> None:
    with bare_server(kind, plan.requests.shape[1], plan.reply_nbytes) as port:
        done = run(plan, port, "--connections", str(connections), "--outstanding", str(outstanding))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert 0 < record["answers"] <= record["answers_all"]
    assert record["seconds"] == 0.1
    assert 0 < record["p50_us"] <= record["p90_us"] <= record["p99_us"] <= record["max_us"]
    assert 0 <= record["cpu_s"] < 1


@contextmanager
def server(*replies: bytes) -> Iterator[int]:
    """Says one thing after each thing it is told, then closes."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            for reply in replies:
                if peer.recv(65_536):
                    peer.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


BOUND = frame_bytes(frame(FrameType.BOUND, rid=1))
FRAMES = frames_plan("w1")
RESULT = FRAMES.expected[0].tobytes()


def result(rid: int, payload: bytes = RESULT) -> bytes:
    return frame_bytes(frame(FrameType.RESULT, rid=rid, flags=8, rows=1, payload=payload))


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ((error_frame(1, ErrorCode.MODEL_NOT_FOUND),), "preamble: status 5.1"),
        ((BOUND, error_frame(1, ErrorCode.SHED)), "request 1: status 8.1"),
        ((BOUND, result(1, bytes(256))), "value"),
        ((BOUND, result(2)), "not in flight"),
        ((BOUND, result(1) + result(1)), "not in flight|closed|[Cc]onnection"),
        ((BOUND, bind_frame(1, 1, "w1") + bytes(512)), "type|not the expected"),
        ((BOUND,), "closed a connection|onnection"),
        ((b"",), "closed a connection after its preamble"),
    ],
)
def test_a_wrong_answer_ends_the_run(run: Any, replies: tuple[bytes, ...], said: str) -> None:
    with server(*replies) as port:
        done = run(FRAMES, port)
    assert done.returncode == 1
    assert not done.stdout
    assert re.search(said, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("head", "said"),
    [("HTTP/1.1 500 No", "HTTP/1.1 500 No"), ("HTTP/1.1 200 OK", "closed a connection|onnection")],
)
def test_http_replies_are_read(run: Any, head: str, said: str) -> None:
    plan = http_plan("w1", "/")
    reply = f"{head}\r\nContent-Length: 256\r\n\r\n".encode() + RESULT
    with server(reply) as port:
        done = run(plan, port)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr


def test_only_frames_can_be_multiplexed(run: Any) -> None:
    done = run(fixed_plan("w1"), 1, "--outstanding", "2")
    assert (done.returncode, done.stderr.strip()) == (1, "only frames can be multiplexed")


def test_a_server_that_is_not_there(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    done = run(FRAMES, port)
    assert done.returncode == 1
    assert "efused" in done.stderr


def test_answers_that_never_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(load, "DRAIN_S", 0.1)
    FRAMES.write(tmp_path / "plan")
    released = threading.Event()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(100)
            peer.sendall(BOUND)
            released.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        options = ["--port", str(listener.getsockname()[1]), "--plan", str(tmp_path / "plan")]
        assert load.main([*options, "--seconds", "0.05", "--warmup", "0"]) == 1
        released.set()
        thread.join(10)
    assert "1 requests were never answered" in capsys.readouterr().err


def test_python_in_this_process(bare_server: BARE, tmp_path: Path, capsys: Any) -> None:
    """The client in Python once more where its coverage is seen."""
    plan = frames_plan("w1", compared=False)
    plan.write(tmp_path / "plan")
    with bare_server("reflector", plan.requests.shape[1], plan.reply_nbytes) as port:
        options = ["--port", str(port), "--plan", str(tmp_path / "plan"), "--seconds", "0.05"]
        assert load.main([*options, "--connections", "2", "--outstanding", "4", "--warmup", "0.01"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] > 0
