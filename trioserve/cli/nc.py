"""`trioserve nc`: frames out, replies in; see `trioserve_tools.netcat`."""

from __future__ import annotations

import argparse

from trioserve.cli import COMMANDS
from trioserve_tools import netcat


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    netcat.add_arguments(subparsers.add_parser("nc", help=COMMANDS["nc"]))


def run(args: argparse.Namespace) -> int:
    """Sends and shows; one of `netcat.EXIT_CODES`."""
    return netcat.run(args)
