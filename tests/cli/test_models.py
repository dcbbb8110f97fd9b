"""`trioserve models` prints a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve import cli
from trioserve.cli._table import nbytes_text, table


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
