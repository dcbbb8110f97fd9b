"""Who may connect, and what for: encryption, tokens, administration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class TlsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Encryption of the TCP port. Files that have changed are read again within a second, for new connections."""

    certificate: str = ""
    """The server's certificate, with those between it and its authority (PEM); empty for no encryption. In a file:
    relative to that file, as the other two."""

    key: str = ""
    """Its private key, without a password (PEM); empty: in the same file."""

    client_ca: str = ""
    """Certificates of the authorities whose clients are let in (PEM); empty: clients need no certificate."""

    min_version: Literal["1.2", "1.3"] = "1.3"
    """Oldest version of TLS that is spoken."""


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
