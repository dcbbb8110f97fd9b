"""Where the server's configuration comes from: defaults < file < environment < flags.

A value is named by its dotted key everywhere: `limits.max_connections` is that key in the file,
`TRIOSERVE_LIMITS__MAX_CONNECTIONS` in the environment. A later source replaces single values of an earlier
one, not whole tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trioserve.config._decode import decode
from trioserve.config._problem import ConfigError, Problem, did_you_mean, shown
from trioserve.config._repository import read_toml
from trioserve.config._server import ServerConfig
from trioserve.config._server_rules import server_problems

ENV_PREFIX = "TRIOSERVE_"

_FLAGS = "command line"
_ENVIRONMENT = "environment"
_NEARLY = 0.85
"""How alike an unknown variable and a known one must be for it to be a misspelling and not somebody
else's."""


def load_server_config(
    file: str | Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> ServerConfig:
    """Puts a server's configuration together.

    Args:
        file: A TOML file with the keys of `ServerConfig`, None for no file.
        env: Environment variables; those called `TRIOSERVE_` and a key in capitals, with `__` for the dot,
            are used.
        flags: Values by dotted key. None as a value means that the flag was not given.

    Returns:
        The configuration; what no source names has its default.

    Raises:
        ConfigError: With everything that is wrong in any source.
    """
    table: dict[str, Any] = {}
    problems: list[Problem] = []
    if file is not None:
        table, problems = read_toml(Path(file))
        _anchor(table, Path(file).parent)
    origins: dict[str, str] = {}
    from_env, found = _from_environment(env or {})
    problems += found
    for source, values in ((_ENVIRONMENT, from_env), (_FLAGS, flags or {})):
        for key, value in values.items():
            if value is not None:
                _put(table, key, value)
                origins[key] = source

    def origin(key: str) -> str:
        return origins.get(key, str(file or "defaults"))

    config, found = decode(ServerConfig, table, origin)
    problems += found if config is None else server_problems(config, origin)
    if config is None or problems:
        raise ConfigError(problems)
    return config


_PATHS = (
    ("", "models", ()),
    ("", "state_dir", ("", "auto")),
    ("auth", "tokens", ("",)),
    ("tls", "certificate", ("",)),
    ("tls", "key", ("",)),
    ("tls", "client_ca", ("",)),
    ("admin", "unix_path", ("", "auto")),
)
"""Keys whose value in a file is relative to that file: table, key, values that are no paths."""


def _anchor(table: dict[str, Any], folder: Path) -> None:
    """Makes the paths of a file independent of the working directory."""
    for name, key, no_paths in _PATHS:
        part = table.get(name) if name else table
        if isinstance(part, dict) and isinstance(part.get(key), str) and part[key] not in no_paths:
            part[key] = str(folder / part[key])


def server_keys(kind: type[msgspec.Struct] = ServerConfig, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Every dotted key of a configuration struct that has one plain value, with the type of that."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from server_keys(field.type, f"{prefix}{field.encode_name}.")
        elif field.default is not msgspec.NODEFAULT:  # what has none is a table of tables, for files only
            yield prefix + field.encode_name, type(field.default)


def variable_of(key: str) -> str:
    """The environment variable of a dotted key."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def _from_environment(env: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    keys = {variable_of(key): (key, kind) for key, kind in server_keys()}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, text in env.items():
        if name in keys:
            key, kind = keys[name]
            try:
                values[key] = kind(text)
            except ValueError:
                problems.append(_bad_variable(name, kind, text))
        elif name.startswith(ENV_PREFIX) and difflib.get_close_matches(name, keys, n=1, cutoff=_NEARLY):
            hint = did_you_mean(name, keys)
            problems.append(Problem(_ENVIRONMENT, name, "the name of a configuration key", shown(name), hint))
    return values, problems


def _bad_variable(name: str, kind: type, text: str) -> Problem:
    """Says what does not parse.

    Kubernetes sets `<SERVICE>_PORT=tcp://...` for every service; one called trioserve takes ours.
    """
    hint = "set enableServiceLinks: false in the pod" if text.startswith(("tcp://", "udp://")) else ""
    expected = "an integer" if kind is int else "a number"
    return Problem(_ENVIRONMENT, name, expected, shown(text), hint)


def _put(table: dict[str, Any], key: str, value: object) -> None:
    """Sets a dotted key. What stands in the way of a table and is none is replaced."""
    *path, last = key.split(".")
    for part in path:
        if not isinstance(table.get(part), dict):
            table[part] = {}
        table = table[part]
    table[last] = value
