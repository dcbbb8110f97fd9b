"""Repositories are found, read and complained about."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve.config import ConfigError, Problem, load_model_config, load_repository

TOML = """\
backend = "onnx"
file = "model.onnx"
[inputs.x]
dtype = "f4"
dims = [-1, 4]
[outputs.y]
dtype = "f4"
dims = [-1, 4]
"""


def add_model(repository: Path, folder: str, head: str = "") -> Path:
    path = repository / folder
    path.mkdir(parents=True)
    (path / "model.toml").write_text(head + TOML)
    (path / "model.onnx").write_bytes(b"graph")
    return path


def problems_of(path: Path) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_repository(path)
    return list(caught.value.problems)


def test_models_in_order(tmp_path: Path) -> None:
    add_model(tmp_path, "b")
    add_model(tmp_path, "a2", 'name = "a"\nversion = 2\n')
    add_model(tmp_path, "z", 'name = "a"\n')
    models = load_repository(tmp_path)
    assert [(model.name, model.version) for model in models] == [("a", 1), ("a", 2), ("b", 1)]
    assert models[2].directory == str(tmp_path / "b")


def test_what_is_no_model_is_left_alone(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    for name in (".git", "__pycache__", "_shared"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "_helpers.py").write_text("this is not Python")
    assert [model.name for model in load_repository(tmp_path)] == ["a"]


@pytest.mark.parametrize("name", ["", "model.toml"])
def test_one_model(tmp_path: Path, name: str) -> None:
    path = add_model(tmp_path, "a") / name
    assert load_repository(path) == [load_model_config(path)]


def test_relative_path_gives_an_absolute_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    assert load_model_config("a").directory == str(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    assert load_model_config("model.toml").name == "a"
    assert load_model_config(".").name == "a"


def test_problems_of_all_models_together(tmp_path: Path) -> None:
    add_model(tmp_path, "a", "slots = 0\n")
    add_model(tmp_path, "b", 'name = "?"\n')
    (tmp_path / "c").mkdir()
    files = [problem.file for problem in problems_of(tmp_path)]
    assert files == [str(tmp_path / name / "model.toml") for name in "abc"]


def test_two_of_one_name(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b", 'name = "a"\n')
    [problem] = problems_of(tmp_path)
    assert (problem.file, problem.key) == (str(tmp_path / "b"), "name")
    assert str(tmp_path / "a") in problem.given


def test_empty_repository(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path)
    assert problem.given == "an empty folder"


@pytest.mark.parametrize("contents", [b"name = ", b"\xff", b"a = " + b"[" * 5000])
def test_broken_toml(tmp_path: Path, contents: bytes) -> None:
    (add_model(tmp_path, "a") / "model.toml").write_bytes(contents)
    [problem] = problems_of(tmp_path)
    assert problem.expected == "TOML in UTF-8"


def test_unreadable_toml(tmp_path: Path) -> None:
    (tmp_path / "a" / "model.toml").mkdir(parents=True)
    [problem] = problems_of(tmp_path / "a")
    assert (problem.expected, problem.given) == ("a file that can be read", "Is a directory")


def test_load_model_config_raises_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing there"):
        load_model_config(tmp_path / "none")
    with pytest.raises(ConfigError, match="nothing there"):
        load_model_config(tmp_path / "none.py")
