"""Files of a model: are they what their author shipped?"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from trioserve.backends._base import LoadError

if TYPE_CHECKING:
    from pathlib import Path


def verify_sha256(path: Path, expected: str) -> None:
    """Check the hash of a file.

    Args:
        path: The file.
        expected: 64 lower-case hexadecimal digits; empty means unchecked.

    Raises:
        LoadError: It has another hash.
    """
    if not expected:
        return
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise LoadError(
            f"{path}: sha256 is {actual}, expected {expected}; the file is not the one configured"
        )
