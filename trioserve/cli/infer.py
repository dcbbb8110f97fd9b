"""`trioserve infer`: one request to a running server, its outputs as JSON or a table."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from trioserve.cli import COMMANDS
from trioserve.cli._connect import add_credentials, credentials
from trioserve.cli._table import table
from trioserve.cli._waterfall import waterfall
from trioserve.client import Inference, RequestClass, sync
from trioserve.errors import DeadlineExceeded, TrioserveError

DEFAULT_URL = "tcp://127.0.0.1:7001"
TIMEOUT_S = 60.0
"""Longest that a request without --deadline-ms may take, in seconds: a person waits for it."""

_EPILOG = """\
inputs    --text TEXT        a row of the text input; repeatable
          --npy [NAME=]FILE  an array from a .npy file
          --json [NAME=]JSON a value: '[1, 2, 3, 4]', 'x=[[1, 2], [3, 4]]'
          A name is needed only if the model has several inputs. With the batch dimension or without it.
"""


class BadInput(Exception):
    """What was given on the command line is no input; `str()` says why."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser(
        "infer",
        help=COMMANDS["infer"],
        description="Send one request to a running server and print the outputs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="name of the model; `trioserve models URL` lists them")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"of the server (default {DEFAULT_URL})")
    add_credentials(parser)
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help="a row of text")
    parser.add_argument("--npy", action="append", default=[], metavar="[NAME=]FILE", help="an array")
    parser.add_argument("--json", action="append", default=[], metavar="[NAME=]JSON", help="a value")
    parser.add_argument(
        "--version", type=int, default=0, metavar="N", help="of the model (default: the newest)"
    )
    parser.add_argument("--tenant", metavar="NAME", help="whom the request is counted for")
    classes = [member.name.lower() for member in RequestClass]
    parser.add_argument(
        "--class", dest="priority", choices=classes, default="critical", help="(default critical)"
    )
    parser.add_argument(
        "--deadline-ms", type=float, metavar="MS", help=f"time for it (default {TIMEOUT_S * 1000:g})"
    )
    parser.add_argument("--output", choices=("json", "table"), default="json", help="(default json)")
    parser.add_argument("--explain", action="store_true", help="draw where the time went, on standard error")


def run(args: argparse.Namespace) -> int:
    """Asks and prints; 1 if the server cannot be asked or answers with an error, 2 for inputs that are none."""
    try:
        inputs = _inputs(args)
        inference = _ask(args, inputs)
    except BadInput as error:
        print(f"trioserve infer: {error}", file=sys.stderr)
        return 2
    except DeadlineExceeded as error:
        # Two clocks end a call: the client's own says nothing that one could use here.
        limit = f"{TIMEOUT_S:g} s" if args.deadline_ms is None else f"--deadline-ms {args.deadline_ms:g}"
        print(f"trioserve infer: no answer within {limit} [{error.code.name.lower()}]", file=sys.stderr)
        return 1
    except (TrioserveError, ValueError) as error:
        print(f"trioserve infer: {error}", file=sys.stderr)
        return 1
    print(_as_json(inference) if args.output == "json" else _as_table(inference))
    if args.explain:
        print(_explained(inference), file=sys.stderr)
    return 0


def _ask(args: argparse.Namespace, inputs: object) -> Inference:
    timeout_s = TIMEOUT_S if args.deadline_ms is None else args.deadline_ms / 1000
    with sync.connect(args.url, timeout_s=TIMEOUT_S, **credentials(args)) as client:
        return client.infer_with_timing(
            args.model,
            inputs,
            version=args.version,
            tenant=args.tenant,
            priority=RequestClass[args.priority.upper()],
            timeout_s=timeout_s,
        )


def _inputs(args: argparse.Namespace) -> object:
    given: list[tuple[str, object]] = []
    if args.text:
        given.append(("", args.text[0] if len(args.text) == 1 else args.text))
    given += [_named(text, _load) for text in args.npy]
    given += [_named(text, _decode) for text in args.json]
    if not given:
        raise BadInput("expected an input: --text, --npy or --json")
    if len(given) == 1 and not given[0][0]:
        return given[0][1]
    if any(not name for name, _ in given):
        raise BadInput("several inputs need names: --npy NAME=FILE, --json NAME=JSON")
    return dict(given)


def _named(text: str, read: Any) -> tuple[str, object]:  # noqa: ANN401  a function of one text
    name, separator, value = text.partition("=")
    if separator and name.replace("_", "a").replace(".", "a").replace("-", "a").isalnum():
        return name, read(value)
    return "", read(text)


def _load(path: str) -> object:
    try:
        with Path(path).open("rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"--npy {path}: {error}") from None


def _decode(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"--json {text}: {error}") from None


def _as_json(inference: Inference) -> str:
    return json.dumps({name: _plain(value) for name, value in inference.outputs.items()})


def _plain(value: Any) -> Any:  # noqa: ANN401  an output
    """Returns an output as JSON can say it: NaN and infinities as text, bytes as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _as_table(inference: Inference) -> str:
    rows = [
        (
            name,
            "bytes" if isinstance(value, bytes) or value.dtype == object else str(value.dtype),
            *_shown(value),
        )
        for name, value in inference.outputs.items()
    ]
    return table(("output", "dtype", "shape", "values"), rows)


def _shown(value: Any) -> tuple[str, str]:  # noqa: ANN401  an output
    if isinstance(value, bytes):
        return "[]", json.dumps(_plain(value))
    shape = f"[{', '.join(map(str, value.shape))}]"
    if value.dtype == object:
        return shape, json.dumps(_plain(value))
    text = np.array2string(value, threshold=16, edgeitems=3, max_line_width=1000, separator=", ")
    return shape, " ".join(text.split())


def _explained(inference: Inference) -> str:
    if inference.timing is None:
        return "the server gave no timing"
    return waterfall(inference.timing, round_trip_us=inference.round_trip_us, server_us=inference.server_us)
