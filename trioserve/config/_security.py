"""Who may connect, and what for: encryption, tokens, administration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class AuthConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that clients must present."""

    tokens: str = ""
    """File of the tokens that are accepted: a line `NAME ROLES SHA256` for each, the roles `infer`, `admin` or
    `infer,admin`, the SHA-256 of the token in hexadecimal. Empty: none is asked for. A file that has changed is read
    again within a second. In a file: relative to that file."""

    failure_pause_s: Annotated[float, Meta(ge=0, le=60, description="seconds")] = 1.0
    """Time after which a client is told that its token is wrong, in seconds. Meanwhile it counts as one of its
    address that has not authenticated, so a guesser has few guesses a second."""


class AdminConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may ask the server about itself, and tell it what to do."""

    unix_path: str = "auto"
    """Unix socket of the administration, for the server's own user alone (mode 0600). `auto` is `trioserve/PORT.sock`
    in `$XDG_RUNTIME_DIR`, or `~/.cache/trioserve/run/PORT.sock`; empty for none. A server without TCP has its process
    number there instead of a port."""

    on_data_port: Literal["health", "models", "statistics", "all"] = "statistics"
    """The most that ADMIN frames are answered where requests are served, each with what stands before it. What changes
    something needs `all`, and there a token with the role `admin`."""
