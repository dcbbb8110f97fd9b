"""`trioserve nc` as it is typed, against a server in a thread; and plain `nc` against a real one."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.client.fake_server import FakeServer, in_thread, listen
from tests.tools.test_netcat_build import WORKED_FRAME
from trioserve.cli import main
from trioserve_protocol import ErrorCode, error_frame, ping_frame
from trioserve_tools import netcat
from trioserve_tools.netcat._wire import Splitter
from trioserve_tools.server_process import running_server

ECHO = """\
import trioserve

class Echo(trioserve.Model):
    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x):
        return x
"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with in_thread() as running:
        yield running


def nc(server: FakeServer, *arguments: str) -> int:
    return main(["nc", server.url, *arguments])


def replies(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_ping(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert nc(server, "--ping", "--show-sent") == 0
    shown = capsys.readouterr().out
    assert "> PING rid 1" in shown
    assert "< PONG rid 1" in shown


def test_bind_and_infer_in_json(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--hello",
        "--bind",
        "scale",
        "--infer",
        "scale",
        "-t",
        "x=[[1, 2, 3, 4]]",
        "--output",
        "json",
    ]
    assert nc(server, *arguments) == 0
    welcome, bound, result = replies(capsys.readouterr().out)
    assert welcome["type"] == "WELCOME"
    assert bound["handle"] == 1
    assert result["outputs"] == {"y": [[2, 4, 6, 8]]}
    assert (bound["rid"], result["rid"]) == (2, 3)


def test_infer_by_name_with_a_file_and_with_text(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    flags = ["--deadline-ms", "500", "--sampled", "--class", "sheddable", "--output", "json"]
    assert nc(server, "--infer", "scale", "-t", str(tmp_path / "x.npy"), *flags) == 0
    (result,) = replies(capsys.readouterr().out)
    assert result["payload_hex"] == np.full((2, 4), 2, np.float32).tobytes().hex()
    assert (
        nc(server, "--bind", "upper", "--infer", "upper", "--text", "a", "--text", "b", "--output", "json")
        == 0
    )
    assert replies(capsys.readouterr().out)[1]["outputs"] == {"upper": ["A", "B"]}


def test_frames_from_files_and_standard_input(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frames.json").write_text('{"type": "PING"}\n{"type": "ADMIN", "json": {"op": "health"}}')
    (tmp_path / "frame.raw").write_bytes(ping_frame(3))
    (tmp_path / "frame.hex").write_text(
        WORKED_FRAME.replace("01 00 00 00 00 00 00 00 ", "04 00 00 00 00 00 00 00 ", 1)
    )
    files = [
        "--json",
        "frames.json",
        "--raw",
        "frame.raw",
        "--hex",
        "frame.hex",
        "--json-frame",
        '{"type": "PING"}',
    ]
    monkeypatch.chdir(tmp_path)
    assert nc(server, *files, "--output", "json") == 0
    found = replies(capsys.readouterr().out)
    assert [reply["type"] for reply in found] == ["PONG", "ADMIN", "PONG", "RESULT", "PONG"]
    assert [reply["rid"] for reply in found] == [1, 2, 3, 1, 5] or found[3]["rid"] == 4
    monkeypatch.setattr(sys, "stdin", argparse.Namespace(buffer=io.BytesIO(ping_frame(9).hex().encode())))
    assert nc(server, "--output", "raw") == 0


def test_an_error_is_status_1(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert nc(server, "--infer", "nope", "-t", "[[1]]") == 1
    assert "5.1 MODEL_NOT_FOUND" in capsys.readouterr().out


def test_a_bad_length_is_learnt_from(capsys: pytest.CaptureFixture[str]) -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        fatal = await peer.next()
        await peer.send(fatal.reply)
        peer.close()

    with in_thread(script) as server:
        assert nc(server, "--ping", "--bad-length", "7") == 1
    assert "not a multiple of 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--infer", "scale"], "at least one input"),
        (["--infer", "scale", "-t", "nonsense"], "neither a .npy file nor JSON"),
        (["--json-frame", '{"type": "NOPE"}'], "expected a number"),
        (["--json-frame", '{"type": "PING", "rid": -1}'], "out of range"),
        (["--hex", "/nonexistent"], "No such file"),
        (["--ping", "--slow", "0"], "--slow"),
    ],
)
def test_what_cannot_be_understood_is_status_2(
    server: FakeServer, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nc(server, *arguments) == 2
    assert message in capsys.readouterr().err


def test_no_server_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    server = listen()
    server.close()
    assert nc(server, "--ping") == 3
    assert "Connection refused" in capsys.readouterr().err
    assert main(["nc", "unix:///nonexistent", "--ping"]) == 3


def test_a_server_that_goes_away_is_status_4_and_a_silent_one_5(capsys: pytest.CaptureFixture[str]) -> None:
    async def goes_away(server: FakeServer) -> None:
        (await server.accept()).close()

    async def says_nothing(server: FakeServer) -> None:
        await (await server.accept()).next()
        await trio.sleep_forever()

    with in_thread(goes_away) as server:
        assert nc(server, "--ping") == 4
    with in_thread(says_nothing) as server:
        assert nc(server, "--ping", "--wait", "0.05") == 5
    assert netcat.EXIT_CODES[5] in capsys.readouterr().err


def test_a_unix_socket(tmp_path: Path) -> None:
    with in_thread(path=str(tmp_path / "s")) as server:
        assert nc(server, "--ping") == 0


def test_explains_a_file_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "capture").write_bytes(error_frame(1, ErrorCode.SHED) + b"TS")
    assert main(["nc", "--explain", str(tmp_path / "capture")]) == 0
    shown = capsys.readouterr().out
    assert "8.1 SHED" in shown
    assert "2 bytes that are not a whole frame" in shown


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nc", "--help"])
    shown = capsys.readouterr().out
    assert all(f"{code}  {meaning}" in shown for code, meaning in netcat.EXIT_CODES.items())


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("nc") and shutil.which("xxd")), reason="needs netcat-openbsd and xxd")
async def test_plain_nc_with_the_worked_frame_of_the_specification(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    request = tmp_path / "request.hex"
    request.write_text("\n".join(line.partition("#")[0] for line in WORKED_FRAME.splitlines()))
    async with running_server(tmp_path / "echo.py") as (url, _):
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        command = f"xxd -r -p {request} | nc -q1 {host} {port}"
        with trio.fail_after(10):
            done = await trio.run_process(["sh", "-c", command], capture_stdout=True)
        (reply,) = Splitter().feed(done.stdout)
        assert (reply.name, reply.rid, reply.handle) == ("RESULT", 1, 0)
        assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 2, 3, 4]
        program = [sys.executable, "-m", "trioserve.cli", "nc", url, "--hex", str(request), "--output", "raw"]
        ours = await trio.run_process(program, capture_stdout=True, env={"PYTHONPATH": ":".join(sys.path)})
        assert Splitter().feed(ours.stdout)[0].payload == reply.payload
    assert subprocess.PIPE
