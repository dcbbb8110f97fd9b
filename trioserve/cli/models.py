"""`trioserve models`: the models of a repository or of a running server, as a table."""

from __future__ import annotations

import argparse
import sys

from trioserve.cli import COMMANDS
from trioserve.cli._table import nbytes_text, table
from trioserve.cli.check import signature_text
from trioserve.config import ConfigError, ModelConfig, load_repository


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser("models", help=COMMANDS["models"], description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("path", nargs="?", metavar="PATH", help="a model repository")
    source.add_argument("--url", help="a running server, tcp://HOST:PORT or unix:///PATH")


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 if the repository has problems or the server cannot be asked."""
    try:
        print(_repository(load_repository(args.path)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _repository(models: list[ModelConfig]) -> str:
    header = ("model", "version", "backend", "signature", "rows", "tokens", "layout", "file")
    return table(header, [_row(config) for config in models])


def _row(config: ModelConfig) -> tuple[object, ...]:
    batching = config.batching
    file = f"{config.file} ({nbytes_text(config.file_path.stat().st_size)})"
    layout, tokens = (batching.layout, batching.max_tokens or "") if config.tokenizer else ("", "")
    signature = signature_text(config)
    return (config.name, config.version, config.backend, signature, batching.max_rows, tokens, layout, file)
