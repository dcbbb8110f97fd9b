"""Wheels are taken from the cache, checked, and never half there."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from trioserve_tools.wheels import Wheel, WheelError, fetch, read, sha256_of


def put_wheel(folder: Path, name: str = "some_data-1.0-py3-none-any.whl") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_data/words.txt", "hello")
    return path


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces pip by one that finds nothing, and records what it was asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "no such distribution")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_cached_wheel_is_not_downloaded(tmp_path: Path, no_pip: list[list[str]]) -> None:
    path = put_wheel(tmp_path)
    assert fetch(Wheel("some-data", "1.0", sha256_of(path.read_bytes())), tmp_path) == path
    assert not no_pip


@pytest.mark.usefixtures("no_pip")
def test_cached_wheel_with_another_hash_is_refused(tmp_path: Path) -> None:
    put_wheel(tmp_path)
    with pytest.raises(WheelError, match="SHA-256 differs"):
        fetch(Wheel("some-data", "1.0", "0" * 64), tmp_path)


def test_failed_download_says_what_pip_said(tmp_path: Path, no_pip: list[list[str]]) -> None:
    with pytest.raises(WheelError, match=r"some-data==2\.0: no such distribution"):
        fetch(Wheel("some-data", "2.0"), tmp_path / "cache")
    assert no_pip[0][-1] == "some-data==2.0"
    assert "--no-deps" in no_pip[0]
    assert list((tmp_path / "cache").iterdir()) == []


def test_download_appears_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        put_wheel(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    path = fetch(Wheel("some-data", "1.0"), tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [path.name]


def test_hanging_pip_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(WheelError, match="600 s"):
        fetch(Wheel("some-data", "1.0"), tmp_path)


def test_read_checks_what_it_reads(tmp_path: Path) -> None:
    path = put_wheel(tmp_path)
    assert read(path, "some_data/words.txt", sha256_of(b"hello")) == b"hello"
    assert read(path, "some_data/words.txt", "") == b"hello"
    with pytest.raises(WheelError, match="has SHA-256"):
        read(path, "some_data/words.txt", "0" * 64)
    with pytest.raises(WheelError, match=r"has no some_data/missing\.txt"):
        read(path, "some_data/missing.txt", "")


def test_read_of_a_broken_archive(tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_bytes(b"not a zip file")
    with pytest.raises(WheelError, match=r"broken\.whl"):
        read(tmp_path / "broken.whl", "x", "")
