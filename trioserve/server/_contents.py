"""What is in the files of a model, as far as names, sizes and times tell."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trioserve.config import is_model_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trioserve.config import ModelConfig

MAX_FILES: Final = 10_000
"""Files of one model that are looked at."""


def contents_of(config: ModelConfig) -> str:
    """A mark that is another one when a file of the model has changed.

    Of a model with a folder of its own all files in it count, but not what Python or an editor leaves there (names that
    begin with `.` or `__`); of a Python file alone, that file.
    """
    folder = Path(config.directory)
    if is_model_folder(folder):
        return mark_of(folder, folder.parent / "model.toml")
    return mark_of(config.file_path, config.file_path.with_suffix(".golden.npz"))


def mark_of(*paths: Path) -> str:
    """A mark of files and of everything in folders; what is not there counts as such."""
    facts = sorted(fact for path in paths for fact in _facts(path))
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


def _facts(path: Path) -> Iterator[str]:
    if not path.is_dir():
        yield _fact(path)
        return
    seen = 0
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            if not name.startswith("."):
                yield _fact(Path(folder, name))
                seen += 1
                if seen == MAX_FILES:
                    return


def _fact(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path}: not there"
    return f"{path}: {found.st_size} {found.st_mtime_ns} {found.st_ino}"
