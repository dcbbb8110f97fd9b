"""`trioserve models` prints a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import pytest
import trio

from trioserve import cli
from trioserve.cli import models
from trioserve.cli._table import duration_text, nbytes_text, table
from trioserve.errors import Unavailable
from trioserve_tools.server_process import running_server


def test_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", str(repository)]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["model", "version"]
    assert row.startswith("double        1  onnx     x f4[-1, 4] -> y f4[-1, 4]    32")


def test_bad_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", str(tmp_path)]) == 1
    assert "an empty folder" in capsys.readouterr().err


def test_table() -> None:
    assert table(("name", "n"), [("a", 1), ("long name", 100)]) == (
        "name         n\n---------  ---\na            1\nlong name  100"
    )
    assert table(("a", "b"), []) == "a  b\n-  -"


@pytest.mark.parametrize(
    "nbytes, text",
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (90 << 20, "90.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert nbytes_text(nbytes) == text


@pytest.mark.parametrize(
    "ns, text",
    [
        (0, "0 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 us"),
        (41_234, "41.2 us"),
        (99_960, "100 us"),
        (2e9, "2.00 s"),
        (1e13, "10000 s"),
    ],
)
def test_times(ns: float, text: str) -> None:
    assert duration_text(ns) == text


class FakeServer:
    """Stands in for a connection to a server."""

    def __init__(self, url: str, *, timeout_s: float, token: str | None, tls: object) -> None:
        if url != "tcp://here:1":
            raise Unavailable(f"no server at {url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def models(self) -> list[dict[str, object]]:
        tensor = {"dtype": "F32", "dims": [-1, 4]}
        return [
            {
                "name": "double",
                "version": 3,
                "ready": ready,
                "max_rows": 32,
                "inputs": [{"name": "x", **tensor}],
                "outputs": [{"name": "y", **tensor}],
            }
            for ready in (True, False)
        ]

    def statistics(self) -> dict[str, object]:
        service = {
            "unit": "row",
            "one_ns": 1_050_000,
            "full_ns": 4_200_000,
            "fixed_ns": 948_000.5,
            "per_unit_ns": 101_600.0,
            "quantile_k": 2.96,
        }
        return {"models": [{"model": "double", "version": 3, "service": service if self.knows else {}}]}

    knows = True


def test_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(models, "connect", FakeServer)
    assert cli.main(["models", "tcp://here:1"]) == 0
    header, _, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[-5:] == ["S(1)", "S(B)", "alpha", "beta", "k"]
    assert first == (
        "double        3  ready      x f4[-1, 4] -> y f4[-1, 4]    32  1.05 ms  4.20 ms  948 us  102 us/row  3.0"
    )
    assert "not ready" in second


def test_as_json(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "connect", FakeServer)
    assert cli.main(["models", "tcp://here:1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [model["ready"] for model in found["models"]] == [True, False]
    assert found["statistics"]["models"][0]["service"]["one_ns"] == 1_050_000
    assert cli.main(["models", str(repository), "--json"]) == 0
    [config] = json.loads(capsys.readouterr().out)["models"]
    assert (config["name"], config["batching"]["max_rows"]) == ("double", 32)


def test_a_server_that_knows_no_run_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "connect", FakeServer)
    monkeypatch.setattr(FakeServer, "knows", False)
    assert cli.main(["models", "tcp://here:1"]) == 0
    assert capsys.readouterr().out.splitlines()[2] == (
        "double        3  ready      x f4[-1, 4] -> y f4[-1, 4]    32"
    )


def test_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(models, "connect", FakeServer)
    assert cli.main(["models", "tcp://there:1"]) == 1
    assert "no server at tcp://there:1" in capsys.readouterr().err


def test_url_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "http://here:1"]) == 1
    assert "http" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
async def test_real_server(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trio.fail_after(60):
        async with running_server(repository) as (url, _):
            assert await trio.to_thread.run_sync(cli.main, ["models", url]) == 0
    out = capsys.readouterr().out
    assert "double        1  ready" in out
    assert "/row" in out
