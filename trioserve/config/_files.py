"""The files a model is made of: inside its folder, there, and with the contents that were pinned."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trioserve.config._model import ModelConfig
from trioserve.config._problem import Problem, shown


def file_problems(config: ModelConfig, origin: str) -> list[Problem]:
    """What is wrong with the files that a configuration names.

    Args:
        config: Its `directory` is set.
        origin: Where the configuration came from, for the problems.
    """
    problems = _file(config.directory, "file", config.file, "sha256", config.sha256, origin)
    if config.tokenizer:
        tokenizer = config.tokenizer
        problems += _file(
            config.directory, "tokenizer.file", tokenizer.file, "tokenizer.sha256", tokenizer.sha256, origin
        )
    return problems


def _file(directory: str, key: str, name: str, sha_key: str, sha256: str, origin: str) -> list[Problem]:
    try:
        path = inside(directory, name)
        if path is None:
            hint = "a link that leads out of the folder counts as outside"
            return [Problem(origin, key, "a path inside the model's folder", shown(name), hint)]
        if not path.is_file():
            return [
                Problem(
                    origin, key, "a file that exists", f"{shown(name)}, which is not there", _neighbours(path)
                )
            ]
        found = sha256_of(path) if sha256 else ""
    except (OSError, ValueError, RuntimeError) as error:  # unreadable; a null byte; a loop of links
        return [Problem(origin, key, "a file that can be read", f"{shown(name)}: {error}")]
    return (
        []
        if found == sha256
        else [Problem(origin, sha_key, sha256, found, f"the contents of {shown(name)} have changed")]
    )


def inside(directory: str | Path, name: str) -> Path | None:
    """The absolute path of `name` in a folder, all links followed; None if that leads out of it."""
    root = Path(directory).resolve()
    path = (root / name).resolve()
    return path if path.is_relative_to(root) and path != root else None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _neighbours(path: Path) -> str:
    """A hint with the files that are there instead."""
    if not path.parent.is_dir():
        return ""
    names = sorted(
        entry.name for entry in path.parent.iterdir() if entry.is_file() and entry.suffix == path.suffix
    )
    return f"beside it: {', '.join(names[:5])}" if names else ""
