"""`trioserve status`: the processes of a running server, as a tree."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from trioserve.cli import COMMANDS
from trioserve.cli._connect import add_credentials, admin_url, credentials
from trioserve.cli._table import nbytes_text, table
from trioserve.cli.infer import DEFAULT_URL
from trioserve.client.sync import connect
from trioserve.errors import TrioserveError

TIMEOUT_S = 5.0
"""Longest that a server may take to answer, in seconds."""

_HEADER = ("process", "pid", "state", "for", "starts", "deaths", "RSS", "in flight", "models", "")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser("status", help=COMMANDS["status"], description=__doc__)
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"(default {DEFAULT_URL})")
    parser.add_argument("--json", action="store_true", help="print it for programs")
    add_credentials(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the tree; 1 if the server cannot be asked, or one of its workers does not serve."""
    try:
        with connect(admin_url(args.url), timeout_s=TIMEOUT_S, **credentials(args)) as client:
            statistics = client.statistics()
    except (TrioserveError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    keys = ("process", "uptime_s", "draining", "sessions", "workers")
    print(json.dumps({key: statistics[key] for key in keys}) if args.json else tree(statistics))
    return int(not all(worker["ready"] for worker in statistics["workers"]))


def tree(statistics: dict[str, Any]) -> str:
    """The processes that a server's statistics tell of, one a line.

    Args:
        statistics: As the server sends them.
    """
    process, workers = statistics["process"], statistics["workers"]
    state = "draining" if statistics["draining"] else "serving"
    in_flight = sum(model["in_flight"] for model in statistics["models"])
    rows: list[tuple[object, ...]] = [
        ("server", process["pid"], state, age_text(statistics["uptime_s"]), "", "",
         nbytes_text(process["rss_nbytes"]), f"{in_flight} requests", "", ""),
    ]  # fmt: skip
    for worker in workers:
        last = worker is workers[-1]
        rows.append(_worker_row("└─ " if last else "├─ ", worker))
        if pid := worker["spare_pid"]:
            stem = "   " if last else "│  "
            size = nbytes_text(worker["spare_rss_nbytes"])
            rows.append((f"{stem}└─ spare", pid, "ready", "", "", "", size, "", "", ""))
    return table(_HEADER, rows)


def _worker_row(stem: str, worker: dict[str, Any]) -> tuple[object, ...]:
    note = f"last death: {worker['last_death']}" if worker["deaths"] else ""
    if worker["retry_in_s"] is not None:
        note += f"; next start in {age_text(worker['retry_in_s'])}"
    return (
        stem + worker["kind"],
        worker["pid"] or "",
        worker["state"],
        age_text(worker["for_s"]),
        worker["starts"],
        worker["deaths"],
        nbytes_text(worker["rss_nbytes"]) if worker["pid"] else "",
        f"{worker['in_flight']} batches",
        ", ".join(worker["models"]),
        note,
    )


def age_text(seconds: float) -> str:
    """A time for people: `0.4 s`, `59 s`, `12 min`, `3.5 h`, `12 d`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"
