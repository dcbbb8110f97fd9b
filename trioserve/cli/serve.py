"""`trioserve serve`: serves the models of a repository until it is told to stop."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from trioserve.cli import COMMANDS
from trioserve.config import (
    ConfigError,
    ModelConfig,
    Problem,
    ServerConfig,
    load_repository,
    load_server_config,
)

_EPILOG = """\
Every key of the configuration can be given in three places; the later one wins: the file (--config), an
environment variable (TRIOSERVE_PORT, TRIOSERVE_LIMITS__MAX_CONNECTIONS), an option (--port, --set).
SIGTERM and Ctrl-C let accepted requests finish; a second one ends at once.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser(
        "serve",
        help=COMMANDS["serve"],
        description="Serve the models of a repository over TCP, a Unix socket or both.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", metavar="PATH", help="model repository, model folder or Python file")
    parser.add_argument("--config", type=Path, metavar="FILE", help="server configuration (TOML)")
    parser.add_argument("--host", help='address to listen on, "" for no TCP (default 127.0.0.1)')
    parser.add_argument("--port", type=int, help="TCP port, 0 for any free one (default 7001)")
    parser.add_argument("--unix", dest="unix_path", metavar="PATH", help="Unix socket to listen on")
    parser.add_argument(
        "--grace", type=float, dest="grace_s", metavar="SECONDS", help="for requests at the end"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="(default info)")
    parser.add_argument("--log-format", choices=("auto", "console", "json"), help="(default auto)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key, as in limits.max_binds=64; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Serves; 0 after an orderly end, 1 if the configuration is unusable."""
    try:
        config, models = configure(args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    from trioserve.server import serve_forever

    return serve_forever(config, models)


def configure(args: argparse.Namespace) -> tuple[ServerConfig, list[ModelConfig]]:
    """The configuration that the command line, the environment and the file give.

    Raises:
        ConfigError: With everything that is wrong in any of them or in the models.
    """
    named = ("models", "host", "port", "unix_path", "grace_s", "log_level", "log_format")
    flags = {
        **_settings(args.set),
        **{key: value for key in named if (value := getattr(args, key)) is not None},
    }
    config = load_server_config(args.config, env=os.environ, flags=flags)
    if not config.models:
        hint = "trioserve serve --models PATH"
        raise ConfigError(
            [Problem(str(args.config or "command line"), "models", "a model repository", "nothing", hint)]
        )
    return config, load_repository(config.models)


def _settings(pairs: list[str]) -> dict[str, Any]:
    """The values of `--set`; what does not read as a TOML value is a text, so quotes may be left out."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError([Problem("command line", "--set", "KEY=VALUE", f'"{pair}"')])
        try:
            settings[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = text
    return settings
