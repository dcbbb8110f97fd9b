"""Folders with several versions of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve.config import ConfigError, find_models, load_model_config, load_repository, model_paths
from trioserve.config._versions import VersionPolicy, parse_policy, version_folders

TOML = """\
backend = "onnx"
file = "model.onnx"
slots = 64
{more}
[inputs.x]
dtype = "f4"
dims = [-1, 4]
[outputs.y]
dtype = "f4"
dims = [-1, 4]
"""


def make(folder: Path, *versions: int, more: str = "") -> Path:
    """A model `ranker` with some versions, in a repository, which is returned."""
    model = folder / "ranker"
    model.mkdir()
    (model / "model.toml").write_text(TOML.format(more=more))
    for version in versions:
        (model / str(version)).mkdir()
        (model / str(version) / "model.onnx").write_text(f"graph {version}")
    return folder


def served(repository: Path) -> list[int]:
    return [config.version for config in load_repository(repository)]


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        ("latest", VersionPolicy(1)),
        ({"latest": 3}, VersionPolicy(3)),
        ([3, 1, 3], VersionPolicy(0, (1, 3))),
        ("newest", None),
        ({"latest": 0}, None),
        ({"latest": True}, None),
        ({"latest": 1, "listed": 2}, None),
        ([], None),
        ([0], None),
        ([True], None),
        ([2**32], None),
        (2, None),
    ],
)
def test_what_a_policy_may_be(value: object, policy: VersionPolicy | None) -> None:
    assert parse_policy(value) == policy


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(1), [10]),
        (VersionPolicy(2), [9, 10]),
        (VersionPolicy(9), [2, 9, 10]),
        (VersionPolicy(0, (2, 3)), [2]),
    ],
)
def test_which_versions_are_served(policy: VersionPolicy, chosen: list[int]) -> None:
    assert policy.choose([10, 9, 2]) == chosen


def test_the_newest_version_is_served(tmp_path: Path) -> None:
    [config] = load_repository(make(tmp_path, 2, 10, 9))
    assert (config.name, config.version, config.slots) == ("ranker", 10, 64)
    assert config.file_path == tmp_path / "ranker" / "10" / "model.onnx"


@pytest.mark.parametrize(
    ("policy", "versions"), [('"latest"', [10]), ("{ latest = 2 }", [9, 10]), ("[2, 10]", [2, 10])]
)
def test_a_policy_says_which(tmp_path: Path, policy: str, versions: list[int]) -> None:
    assert served(make(tmp_path, 2, 10, 9, more=f"version_policy = {policy}")) == versions


def test_a_version_may_differ_from_the_others(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, more="version_policy = [1, 2]")
    (tmp_path / "ranker" / "2" / "model.toml").write_text("slots = 128")
    assert [config.slots for config in load_repository(tmp_path)] == [64, 128]


def test_a_folder_with_the_file_itself_has_no_versions(tmp_path: Path) -> None:
    make(tmp_path, 1, 2)
    (tmp_path / "ranker" / "model.onnx").write_text("graph")
    [config] = load_repository(tmp_path)
    assert config.file_path == tmp_path / "ranker" / "model.onnx"
    assert not version_folders(tmp_path / "ranker")


@pytest.mark.parametrize("name", ["0", "01", "1a", "-1", "4294967296", "1" * 11])
def test_what_is_no_version(tmp_path: Path, name: str) -> None:
    make(tmp_path, 1)
    (tmp_path / "ranker" / name).mkdir()
    assert list(version_folders(tmp_path / "ranker")) == [1]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("version_policy = [1, 3]", "a folder for each version that is listed, also 3"),
        ("version_policy = 3", '"latest", { latest = 2 }'),
        ("version = 3", "the folder's name says it"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, more: str, expected: str) -> None:
    make(tmp_path, 1, 2, more=more)
    with pytest.raises(ConfigError, match=r"version") as caught:
        load_repository(tmp_path)
    assert expected in str(caught.value)


def test_a_policy_needs_versions(tmp_path: Path) -> None:
    make(tmp_path, more='version_policy = "latest"')
    (tmp_path / "ranker" / "model.onnx").write_text("graph")
    with pytest.raises(ConfigError, match="folders with versions"):
        load_repository(tmp_path)


def test_a_model_is_found_by_name_and_version(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    assert [config.version for config in find_models(tmp_path, "ranker")] == [3]
    assert [config.version for config in find_models(tmp_path, "ranker", 1)] == [1], (
        "whatever the policy says"
    )
    assert find_models(tmp_path, "ranker", 4) == []
    assert find_models(tmp_path, "other") == []
    assert load_model_config(tmp_path / "ranker" / "2").version == 2


def test_a_model_may_be_called_otherwise_than_its_folder(tmp_path: Path) -> None:
    make(tmp_path, 1, more='name = "other"')
    assert [config.name for config in find_models(tmp_path, "other")] == ["other"]
    assert find_models(tmp_path, "ranker") == []


def test_one_model_is_a_repository_too(tmp_path: Path) -> None:
    make(tmp_path, 1, 2)
    assert model_paths(tmp_path / "ranker") == [tmp_path / "ranker" / "2"]
