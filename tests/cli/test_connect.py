"""What commands tell a server of themselves, and where they have it from."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trioserve.cli._connect import TOKEN_VARIABLE, add_credentials, credentials


def given(*arguments: str) -> str | None:
    parser = argparse.ArgumentParser()
    add_credentials(parser)
    return credentials(parser.parse_args(arguments))["token"]


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert given() is None
    assert given("--token-file", str(file)) == "from-file"
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert given() == "from-environment"
    assert given("--token-file", str(file)) == "from-file"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert given() is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        given("--token-file", str(tmp_path / "none"))
