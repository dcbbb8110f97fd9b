"""What is near: this machine's own addresses, and where a user's servers keep the sockets of their administration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOOPBACK_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
"""What no other machine can reach, nor listen to."""


def run_dir() -> Path:
    """The folder for the sockets of this user's servers; it need not exist.

    Raises:
        RuntimeError: the user has no home.
    """
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base) / "trioserve"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trioserve" / "run"


def admin_socket(name: str) -> Path:
    """The socket of one server's administration; it need not exist.

    Args:
        name: its port, or its process id if it has none.

    Raises:
        RuntimeError: the user has no home.
    """
    return run_dir() / f"{name}.sock"
