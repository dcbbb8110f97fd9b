"""`trioserve infer` as it is typed, against a server in a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.fake_server import SCALE, FakeServer, in_thread, listen
from trioserve.cli import main
from trioserve_protocol import Flag, Infer, Tag, Timing, tlv


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with in_thread() as running:
        yield running


def infer(server: FakeServer, *arguments: str) -> int:
    return main(["infer", *arguments, "--url", server.url])


def test_json_in_json_out(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(server, "scale", "--json", "[1, 2, 3, 4]") == 0
    assert json.loads(capsys.readouterr().out) == {"y": [2, 4, 6, 8]}
    assert infer(server, "pair", "--json", "a=[[1, 2, 3]]", "--json", "b=[4]") == 0
    assert json.loads(capsys.readouterr().out) == {"sum": [10], "flag": [[True, True, True]]}


def test_text(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(server, "upper", "--text", "a=b") == 0
    assert json.loads(capsys.readouterr().out) == {"upper": "A=B"}
    assert infer(server, "upper", "--text", "a", "--text", "b", "--output", "table") == 0
    assert '["A", "B"]' in capsys.readouterr().out


def test_files(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 2, np.nan, np.inf]], np.float32))
    assert infer(server, "scale", "--npy", f"x={tmp_path / 'x.npy'}") == 0
    assert json.loads(capsys.readouterr().out) == {"y": [[2, 4, "nan", "inf"]]}
    assert infer(server, "scale", "--npy", str(tmp_path / "x.npy"), "--output", "table") == 0
    assert "[1, 4]" in capsys.readouterr().out


def test_a_table_shortens_long_outputs(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(50_000, np.float32))
    assert infer(server, "wide", "--npy", str(tmp_path / "x.npy"), "--output", "table") == 0
    shown = capsys.readouterr().out
    assert "[50000]" in shown
    assert "..." in shown
    assert infer(server, "upper", "--text", "a", "--output", "table") == 0
    assert '"A"' in capsys.readouterr().out


def test_options_go_on_the_wire_and_the_timing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        bind = await peer.bound(SCALE)
        assert (bind.version, bind.tenant) == (3, "acme")
        request: Infer = await peer.next(Infer)
        assert request.flags == Flag.END | Flag.SAMPLED | 3
        assert 0 < request.timeout_us <= 5_000_000
        timing = Timing(received_ns=1000, run_ns=51_000, batch_rows=1)
        await peer.result(request.rid, np.ones((1, 4), np.float32), meta=tlv(Tag.TIMING, timing.encode()))

    with in_thread(script) as server:
        flags = [
            "--version",
            "3",
            "--tenant",
            "acme",
            "--class",
            "sheddable",
            "--deadline-ms",
            "5000",
            "--explain",
        ]
        json_input = ["--json", "[[1, 2, 3, 4]]"]
        assert infer(server, "scale", *json_input, *flags) == 0
    assert "50.0 µs" in capsys.readouterr().err


def test_a_server_without_timing_is_told_so(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(server, "scale", "--json", "[1, 2, 3, 4]", "--explain") == 0
    assert "no timing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["scale"], 2, "expected an input"),
        (["scale", "--json", "x=["], 2, "--json ["),
        (["scale", "--npy", "/nonexistent"], 2, "No such file"),
        (["scale", "--npy", __file__], 2, "magic string"),
        (["scale", "--json", "[1, 2, 3, 4]", "--deadline-ms", "0"], 1, "no answer within --deadline-ms 0"),
        (["pair", "--json", "[1]", "--json", "[2]"], 2, "need names"),
        (["nope", "--json", "[1]"], 1, "no model 'nope'"),
        (["scale", "--json", "[1]"], 1, "wanted is [rows, 4] or [4]"),
        (["scale", "--json", "[1]", "--tenant", "acme corp", "--url", "ftp://x"], 1, "no server address"),
    ],
)
def test_what_went_wrong_is_said_without_a_traceback(
    server: FakeServer, arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = [] if "--url" in arguments else ["--url", server.url]
    assert main(["infer", *arguments, *url]) == status
    assert message in capsys.readouterr().err


def test_no_server_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    server = listen()
    server.close()
    assert infer(server, "scale", "--json", "[1]") == 1
    assert "Connection refused" in capsys.readouterr().err
