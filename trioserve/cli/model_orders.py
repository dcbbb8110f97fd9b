"""`trioserve models load | reload | unload`: changes what a running server serves."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from trioserve.cli import COMMANDS, ORDERS
from trioserve.cli._connect import add_credentials, admin_url, credentials
from trioserve.cli.infer import DEFAULT_URL
from trioserve.client.sync import connect
from trioserve.errors import TrioserveError

TIMEOUT_S = 600.0
"""Longest that is waited for the server, in seconds: a large model takes its time to load."""

_LINES = {
    "load": "load a model, or a version, that the server's repository has; nothing to do if it is served",
    "reload": "read a model anew; the old one serves until the new one is loaded, warm and tested",
    "unload": "serve a model, or a version, no longer; what it has accepted is answered",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    models = subparsers.add_parser("models", help=COMMANDS["models"])
    orders = models.add_subparsers(dest="order", metavar="ORDER", required=True)
    for order in ORDERS:
        parser = orders.add_parser(order, help=_LINES[order], description=f"{_LINES[order].capitalize()}.")
        parser.add_argument(
            "model",
            metavar="NAME[:VERSION]",
            type=_named,
            nargs="?" if order == "reload" else None,
            default=("", 0),
            help="without a version: as its policy says"
            + ("; without a name: all that has changed in the repository" * (order == "reload")),
        )
        parser.add_argument(
            "--url",
            default=DEFAULT_URL,
            help=f"of the server (default {DEFAULT_URL}); on this machine its admin socket is used if there is one",
        )
        add_credentials(parser)
        parser.add_argument(
            "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help=f"(default {TIMEOUT_S:g})"
        )


def run(args: argparse.Namespace) -> int:
    """Gives the order and prints what came of it; 1 if it failed, and then nothing has changed."""
    name, version = args.model
    try:
        with connect(admin_url(args.url), timeout_s=args.timeout, **credentials(args)) as client:
            give = {"load": client.load_model, "reload": client.reload_model, "unload": client.unload_model}
            answer = give[args.order](name, version=version)
    except (TrioserveError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(told(answer))
    return 0


def _named(text: str) -> tuple[str, int]:
    """Name and version, 0 for none."""
    name, colon, version = text.partition(":")
    if not name or (colon and not (version.isdecimal() and int(version))):
        raise argparse.ArgumentTypeError(f"expected NAME or NAME:VERSION, got {text!r}")
    return name, int(version or 0)


def told(answer: dict[str, Any]) -> str:
    """What a server answered, for people."""
    parts = [f"{what} {_listed(answer[what])}" for what in ("loaded", "unloaded") if answer[what]]
    return f"{'; '.join(parts) or 'nothing to do'} ({answer['took_s']:.2f} s)"


def _listed(models: list[dict[str, Any]]) -> str:
    return ", ".join(f"{model['name']}:{model['version']}" for model in models)
