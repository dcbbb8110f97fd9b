"""How commands connect to a server: what they need beside its URL, from options and the environment."""

from __future__ import annotations

import argparse
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from trioserve.client import client_context
from trioserve.config import LOOPBACK_HOSTS, admin_socket

TOKEN_VARIABLE = "TRIOSERVE_TOKEN"  # noqa: S105  the name of a variable


class Credentials(TypedDict):
    """Arguments of `connect`."""

    token: str | None
    tls: ssl.SSLContext | None


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Describes the options. A token itself is none: others see the arguments of a process."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token for the server (default: the variable {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="authorities that a tls:// server is trusted by (default: the system's)",
    )
    parser.add_argument("--cert-file", metavar="FILE", help="own certificate, if the server asks for one")
    parser.add_argument("--key-file", metavar="FILE", help="its key (default: in the same file)")


def admin_url(url: str) -> str:
    """Where a server is administered: by its own socket, if it is this user's and on this machine.

    Args:
        url: where it serves.
    """
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK_HOSTS or not parts.port:
        return url
    with suppress(RuntimeError):
        if (path := admin_socket(str(parts.port))).is_socket():
            return f"unix://{path}"
    return url


def credentials(args: argparse.Namespace) -> Credentials:
    """What was given.

    Raises:
        ValueError: a file cannot be read.
    """
    return Credentials(token=_token(args.token_file), tls=_context(args))


def _context(args: argparse.Namespace) -> ssl.SSLContext | None:
    if args.ca_file is None and args.cert_file is None:
        return None
    try:
        return client_context(args.ca_file, args.cert_file, args.key_file)
    except OSError as error:
        raise ValueError(f"--ca-file, --cert-file, --key-file: {error}") from None


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}") from None
