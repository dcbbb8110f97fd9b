"""Tokens: who may come in, known by their digests only."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ._reloaded import BadFile, Reloaded

ROLES: Final = frozenset({"infer", "admin"})
_LINE: Final = re.compile(r"(\S+)\s+(\S+)\s+(\S+)")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


class Token(NamedTuple):
    """One line of a file of tokens."""

    name: str
    """Whose it is, for statistics and the log."""

    roles: frozenset[str]
    """What it is good for: of `ROLES`, at least one."""

    digest: bytes
    """SHA-256 of the token. A token is random, so that a slow digest, as for passwords, would gain nothing."""


class TokenFile:
    """The tokens of a file, which may be replaced while the server runs.

    Args:
        path: the file.
        now_ns: the time.

    Raises:
        OSError: it cannot be read.
        BadFile: a line of it makes no sense; the message says which and why, and shows no digest.
    """

    def __init__(self, path: str, now_ns: int) -> None:
        self._tokens: Final = Reloaded([path], lambda: read_tokens(path), now_ns)

    def find(self, secret: bytes, now_ns: int) -> Token | None:
        """The token whose secret this is. The time it takes does not depend on which one it is, or if it is one."""
        digest = hashlib.sha256(secret).digest()
        found = None
        for token in self._tokens.current(now_ns):
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def read_tokens(path: str) -> Sequence[Token]:
    """The tokens of a file; raises as `TokenFile` does."""
    tokens: list[Token] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text:
            tokens.append(_token(text, f"{path}, line {number}"))
    if not tokens:
        raise BadFile(f"{path}: expected a token, found none")
    for what in ("name", "digest"):
        if len({getattr(token, what) for token in tokens}) < len(tokens):
            raise BadFile(f"{path}: expected different tokens, found two of one {what}")
    return tokens


def _token(text: str, where: str) -> Token:
    parts = _LINE.fullmatch(text)
    if parts is None:
        raise BadFile(f"{where}: expected NAME ROLES SHA256")
    name, roles, digest = parts.groups()
    if not _NAME.fullmatch(name):
        raise BadFile(f"{where}: expected a name of letters, digits, `_`, `.` or `-`")
    if not ROLES.issuperset(roles.split(",")):
        raise BadFile(f"{where}: expected the roles infer, admin or infer,admin")
    if not _DIGEST.fullmatch(digest):
        raise BadFile(f"{where}: expected the SHA-256 of the token, 64 hexadecimal digits")
    return Token(name, frozenset(roles.split(",")), bytes.fromhex(digest))
