"""How commands connect to a server: what they need beside its URL, from options and the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TypedDict

TOKEN_VARIABLE = "TRIOSERVE_TOKEN"  # noqa: S105  the name of a variable


class Credentials(TypedDict):
    """Arguments of `connect`."""

    token: str | None


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Describes the options. A token itself is none: others see the arguments of a process."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token for the server (default: the variable {TOKEN_VARIABLE})",
    )


def credentials(args: argparse.Namespace) -> Credentials:
    """What was given.

    Raises:
        ValueError: a file cannot be read.
    """
    return Credentials(token=_token(args.token_file))


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}") from None
