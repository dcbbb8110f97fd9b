"""`trioserve models`: the models of a repository or of a running server, as a table."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import msgspec

from trioserve.cli import COMMANDS
from trioserve.cli._connect import add_credentials, credentials
from trioserve.cli._table import dtype_text, duration_text, nbytes_text, table
from trioserve.cli.check import signature_text
from trioserve.client.sync import SyncClient, connect
from trioserve.config import ConfigError, ModelConfig, load_repository
from trioserve.errors import PermissionDenied, TrioserveError
from trioserve_protocol import DType

TIMEOUT_S = 5.0
"""Longest that a server may take to answer, in seconds."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser("models", help=COMMANDS["models"], description=__doc__)
    parser.add_argument(
        "source",
        metavar="PATH|URL",
        help="a model repository, or a running server: tcp://HOST:PORT, unix:///PATH",
    )
    parser.add_argument(
        "--json", action="store_true", help="all that a server says of its models and counts, or all settings"
    )
    add_credentials(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the table; 1 if the repository has problems or the server cannot be asked."""
    try:
        print(_server(args) if "://" in args.source else _repository(args.source, as_json=args.json))
    except (ConfigError, TrioserveError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _repository(path: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"models": [msgspec.to_builtins(config) for config in load_repository(path)]})
    header = ("model", "version", "backend", "signature", "rows", "tokens", "layout", "file")
    return table(header, [_row(config) for config in load_repository(path)])


def _row(config: ModelConfig) -> tuple[object, ...]:
    batching = config.batching
    file = f"{config.file} ({nbytes_text(config.file_path.stat().st_size)})"
    layout, tokens = (batching.layout, batching.max_tokens or "") if config.tokenizer else ("", "")
    signature = signature_text(config)
    return (config.name, config.version, config.backend, signature, batching.max_rows, tokens, layout, file)


def _server(args: argparse.Namespace) -> str:
    with connect(args.source, timeout_s=TIMEOUT_S, **credentials(args)) as client:
        models, statistics = client.models(), _statistics(client)
    if args.json:
        return json.dumps({"models": models, "statistics": statistics})
    learnt = {(model["model"], model["version"]): model.get("service", {}) for model in statistics["models"]}
    header = ("model", "version", "state", "signature", "rows", *_SERVICE)
    return table(
        header, [_served_row(model, learnt.get((model["name"], model["version"]), {})) for model in models]
    )


def _statistics(client: SyncClient) -> dict[str, Any]:
    """What the server tells of its models' times: nothing, if not to this client."""
    try:
        return dict(client.statistics())
    except PermissionDenied:
        return {"models": []}


_SERVICE = ("S(1)", "S(B)", "alpha", "beta", "k")
"""Service times: of the smallest and the largest batch, of a batch whatever its size, of a unit more; deviations up to
the quantile."""


def _served_row(model: dict[str, Any], service: dict[str, Any]) -> tuple[object, ...]:
    """A row of what a server says of a model; see ADMIN in the protocol's specification.

    Args:
        model: What it is.
        service: What the server has learnt of its run times; empty if it does not say, or knows nothing.
    """
    state = "ready" if model["ready"] else "not ready"
    signature = f"{_tensors(model['inputs'])} -> {_tensors(model['outputs'])}"
    known = (model["name"], model["version"], state, signature, model["max_rows"])
    if not service.get("one_ns"):
        return (*known, *[""] * len(_SERVICE))
    times = [duration_text(service[key]) for key in ("one_ns", "full_ns", "fixed_ns", "per_unit_ns")]
    times[-1] += f"/{service['unit']}"
    return (*known, *times, f"{service['quantile_k']:.1f}")


def _tensors(tensors: list[dict[str, Any]]) -> str:
    return ", ".join(f"{tensor['name']} {_dtype(tensor['dtype'])}{tensor['dims']}" for tensor in tensors)


def _dtype(name: str) -> str:
    """A server names a datatype as the specification does; one that a newer server has stays as it is."""
    return dtype_text(DType[name]) if name in DType.__members__ else name
