"""The `trioserve` command: one module a subcommand, imported only when it is the one that was typed.

A subcommand's module has `add_parser(subparsers)`, which describes its arguments, and `run(args) -> int`,
which does the work and returns the exit status. Status 0 is success, 1 that what was asked for did not
succeed, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "serve": "serve the models of a repository",
    "infer": "send one request to a server and print the answer",
    "nc": "speak the protocol frame by frame",
    "check": "say what is wrong with a model repository or a server's configuration",
    "models": "list the models of a repository or of a running server; load, reload, unload one",
    "status": "show the processes of a running server",
    "replay": "say what other policies would have made of recorded traffic",
}
"""Subcommands with the line that `--help` has for them; the module of each has its name."""

ORDERS = ("load", "reload", "unload")
"""What can stand behind `models` in the place of what is to be listed."""

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: Arguments without the program's name; None for those of the process.

    Returns:
        The exit status.

    Raises:
        SystemExit: argparse printed help or complained.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in arguments if not word.startswith("-")]
    chosen = words[0] if words else ""
    module = "model_orders" if chosen == "models" and words[1:] and words[1] in ORDERS else chosen
    args = _parser(chosen, module).parse_args(arguments)
    run = importlib.import_module(f"trioserve.cli.{module}").run
    try:
        status = int(run(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser(chosen: str, module: str) -> argparse.ArgumentParser:
    """The parser, complete for the chosen subcommand; the others have their line of help and nothing else.

    Args:
        chosen: The subcommand.
        module: Where it is described.
    """
    parser = argparse.ArgumentParser(prog="trioserve", description="A latency-first model server.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        if name == chosen:
            importlib.import_module(f"trioserve.cli.{module}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=line, add_help=False)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: reading a distribution's metadata takes 20 ms."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints the version and exits."""
        metadata = importlib.import_module("importlib.metadata")
        print(f"trioserve {metadata.version('trioserve')}")
        parser.exit()
