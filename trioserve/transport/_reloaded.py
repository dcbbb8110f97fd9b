"""Files that may be replaced while the server runs: certificates, tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

LOOK_NS: Final = 1_000_000_000
"""How often files are looked at, at most: connections may come by the thousand."""

T = TypeVar("T")


class BadFile(Exception):
    """What a file says makes no sense; the message names the file."""


class Reloaded(Generic[T]):
    """What some files say, read again when one of them has changed.

    Args:
        paths: the files.
        load: reads them.
        now_ns: the time, of the same clock as in `current`.

    Raises:
        OSError: a file cannot be read.
        BadFile: what a file says makes no sense.
    """

    def __init__(self, paths: Sequence[str], load: Callable[[], T], now_ns: int) -> None:
        self._paths: Final = tuple(paths)
        self._load: Final = load
        self._state = self._looked()
        self._value = load()
        self._next_ns = now_ns + LOOK_NS

    def current(self, now_ns: int) -> T:
        """What the files say, at most a second ago; what they said before, while they make no sense."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + LOOK_NS
            state = self._looked()
            if state != self._state:
                self._state = state
                self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except (OSError, BadFile) as error:
            log.warning("files_not_reloaded", paths=self._paths, reason=str(error))
        else:
            log.info("files_reloaded", paths=self._paths)

    def _looked(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_identity, self._paths))


def _identity(path: str) -> tuple[int, int, int] | None:
    """What tells a file's contents from others without reading them; None if it is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
