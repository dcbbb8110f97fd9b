"""Files are inside the model's folder, there, and unchanged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trioserve.config import ModelConfig, Problem, TokenizerConfig, file_problems
from trioserve.config._files import inside, sha256_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(b"graph")
    (tmp_path / "outside.onnx").write_bytes(b"secret")
    return folder


def problems(folder: Path, file: str = "m.onnx", **changes: object) -> list[Problem]:
    config = ModelConfig(name="m", backend="onnx", file=file, directory=str(folder), **changes)  # type: ignore[arg-type]
    return file_problems(config, "model.toml")


def test_good(folder: Path) -> None:
    assert problems(folder) == []
    assert problems(folder, sha256=hashlib.sha256(b"graph").hexdigest()) == []


@pytest.mark.parametrize(
    "name", ["../outside.onnx", "a/../../outside.onnx", ".", "/etc/passwd", "link.onnx", "up/outside.onnx"]
)
def test_outside(folder: Path, name: str) -> None:
    (folder / "link.onnx").symlink_to(folder.parent / "outside.onnx")
    (folder / "up").symlink_to(folder.parent)
    [problem] = problems(folder, name)
    assert (problem.key, problem.expected) == ("file", "a path inside the model's folder")
    assert inside(folder, name) is None


def test_link_that_stays_inside(folder: Path) -> None:
    (folder / "link.onnx").symlink_to("m.onnx")
    assert problems(folder, "link.onnx") == []


def test_folder_itself_behind_a_link(folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder)
    assert problems(folder.parent / "alias") == []


def test_missing_file_names_its_neighbours(folder: Path) -> None:
    [problem] = problems(folder, "n.onnx")
    assert problem.given == '"n.onnx", which is not there'
    assert problem.hint == "beside it: m.onnx"
    [problem] = problems(folder, "sub/n.onnx")
    assert problem.hint == ""


@pytest.mark.parametrize("name", ["nul\0.onnx", "loop.onnx"])
def test_unreadable(folder: Path, name: str) -> None:
    (folder / "loop.onnx").symlink_to("loop.onnx")
    [problem] = problems(folder, name)
    assert problem.key == "file"


def test_changed_contents(folder: Path) -> None:
    [problem] = problems(folder, sha256="0" * 64)
    assert (problem.key, problem.given) == ("sha256", sha256_of(folder / "m.onnx"))


def test_tokenizer_is_looked_at_too(folder: Path) -> None:
    [problem] = problems(folder, tokenizer=TokenizerConfig("t.json"))
    assert problem.key == "tokenizer.file"
    (folder / "t.json").write_text("{}")
    [problem] = problems(folder, tokenizer=TokenizerConfig("t.json", sha256="0" * 64))
    assert problem.key == "tokenizer.sha256"
