"""Several versions of one model: folders with numbers for names, and which of them are served.

    minilm/
        model.toml         what holds for all versions; says `version_policy`
        3/  model.onnx     the files of one; a `model.toml` here says what differs
        4/  model.onnx

A folder that has the model's file itself has no versions, whatever else is in it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from trioserve.config._problem import Problem, shown

MODEL_FILE = "model.toml"
POLICY = "version_policy"
MAX_VERSION = 2**32 - 1
_VERSION = re.compile(r"[1-9][0-9]{0,9}")
_EXPECTED = '"latest", { latest = 2 } for so many of the newest, or a list of versions, [1, 3]'


class VersionPolicy(NamedTuple):
    """Which versions are served."""

    latest: int = 1
    """So many of the newest; 0 for those that are listed."""

    listed: tuple[int, ...] = ()

    def choose(self, there: Collection[int]) -> list[int]:
        """The versions to be served of those that are there, ascending. One that is listed may be missing."""
        ordered = sorted(there)
        return ordered[-self.latest :] if self.latest else [one for one in ordered if one in self.listed]


def parse_policy(value: object) -> VersionPolicy | None:
    """The policy that a value of `version_policy` means; None if it means none."""
    match value:
        case "latest":
            return VersionPolicy()
        case {"latest": int(count), **others} if count >= 1 and not others and not isinstance(count, bool):
            return VersionPolicy(count)
        case list() if value and all(type(one) is int and 1 <= one <= MAX_VERSION for one in value):
            return VersionPolicy(0, tuple(sorted(set(value))))
    return None


def version_folders(folder: Path) -> dict[int, Path]:
    """The versions of a model, by number; empty if its folder has none."""
    table = _table(folder / MODEL_FILE)
    if table is None or (POLICY not in table and _has_file(folder, table)):
        return {}
    return {
        int(entry.name): entry
        for entry in sorted(folder.iterdir())
        if _VERSION.fullmatch(entry.name) and int(entry.name) <= MAX_VERSION and entry.is_dir()
    }


def served_versions(folder: Path) -> list[Path]:
    """Where the versions are that a model's folder says are to be served; the folder itself if it has no versions.

    So it is, too, if what it says of them is no policy, or one that no version fits: whoever reads it is told.
    """
    there = version_folders(folder)
    policy = parse_policy((_table(folder / MODEL_FILE) or {}).get(POLICY, "latest"))
    if not there or policy is None or set(policy.listed) - there.keys():
        return [folder]
    return [there[version] for version in policy.choose(there)]


def is_version(path: Path) -> bool:
    """Whether a folder is one of a model's versions."""
    whole = path.absolute()
    return bool(_VERSION.fullmatch(whole.name)) and whole in version_folders(whole.parent).values()


def version_table(path: Path, own: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The configuration of one version.

    Args:
        path: Its folder.
        own: What its own `model.toml` says.

    Returns:
        What holds for it, keys of its own before those of all versions; and what is wrong with it.
    """
    folder = path.absolute().parent
    common = dict(_table(folder / MODEL_FILE) or {})
    common.pop(POLICY, None)
    problems = [
        Problem(str(file), "version", "nothing, because the folder's name says it", shown(table["version"]))
        for file, table in ((folder / MODEL_FILE, common), (path / MODEL_FILE, own))
        if "version" in table
    ]
    return {"name": folder.name, **common, **own, "version": int(path.name)}, problems


def policy_problems(folder: Path, table: dict[str, Any]) -> list[Problem]:
    """What is wrong with the versions of a model whose folder was taken for the model itself."""
    file = str(folder / MODEL_FILE)
    if POLICY not in table:
        return []
    policy = parse_policy(table[POLICY])
    if policy is None:
        return [Problem(file, POLICY, _EXPECTED, shown(table[POLICY]))]
    there = version_folders(folder)
    if not there:
        return [Problem(file, POLICY, "folders with versions beside the file: 1, 2, ...", "none")]
    missing = ", ".join(str(version) for version in policy.listed if version not in there)
    given = ", ".join(map(str, sorted(there)))
    return [Problem(file, POLICY, f"a folder for each version that is listed, also {missing}", given)]


def _table(file: Path) -> dict[str, Any] | None:
    """What a file says; None for one that says nothing readable, which whoever reads the model is told."""
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, ValueError, RecursionError):
        return None


def _has_file(folder: Path, table: dict[str, Any]) -> bool:
    name = table.get("file")
    return isinstance(name, str) and "\0" not in name and (folder / name).is_file()
