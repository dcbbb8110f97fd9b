"""`python -m trioserve_tools.bench`, `make bench`."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from trioserve_tools.bench import __doc__ as _about
from trioserve_tools.bench._client import LoadFailed, load_client
from trioserve_tools.bench._figures import Figure, PartResult
from trioserve_tools.bench._memory import measure_memory
from trioserve_tools.bench._minilm import measure_minilm
from trioserve_tools.bench._page import updated
from trioserve_tools.bench._report import environment, figures_report, heading, part_report, record
from trioserve_tools.bench._scenarios import SCENARIOS, Setting
from trioserve_tools.bench._subjects import SubjectFailed
from trioserve_tools.server_process import ServerFailed

PARTS: Final[dict[str, Callable[[Setting], Awaitable[PartResult]]]] = {
    **{scenario.name: scenario.run for scenario in SCENARIOS},
    "minilm": measure_minilm,
    "memory": measure_memory,
}

FAILURES: Final = (LoadFailed, SubjectFailed, ServerFailed, OSError)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints; 0 if it could, and with `--threshold` if every measured figure reaches its target."""
    args = _parser().parse_args(argv)
    try:
        setting = _setting(args)
    except LoadFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    date = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d")
    facts = environment(setting)
    print(heading(facts, date), flush=True)
    parts = trio.run(_measure_all, args.only or list(PARTS), setting)
    figures = [figure for part in parts for figure in part.figures]
    print(f"\n{figures_report(figures)}")
    _write(args, parts, facts, date)
    complete = len(parts) == len(args.only or PARTS)
    return 0 if complete and not (args.threshold and _misses(figures)) else 1


async def _measure_all(names: Sequence[str], setting: Setting) -> list[PartResult]:
    """Measures part after part and prints each as soon as it is known; what cannot be measured is left out."""
    parts: list[PartResult] = []
    for name in names:
        setting.progress(name)
        try:
            part = await PARTS[name](setting)
        except* FAILURES as group:
            for failure in _leaves(group):
                print(f"bench: {name}: {failure}", file=sys.stderr)
        else:
            parts.append(part)
            print(f"\n{part_report(part)}", flush=True)
    return parts


def _write(args: argparse.Namespace, parts: Sequence[PartResult], facts: dict[str, Any], date: str) -> None:
    length = f"--seconds {args.seconds:g} --repeat {args.repeat}"
    if args.json:
        only = [word for part in parts for word in ("--only", part.name)]
        command = shlex.join(["python", "-m", "trioserve_tools.bench", *only, *length.split()])
        text = json.dumps(record(parts, facts, date=date, command=command), indent=1)
        args.json.write_text(f"{text}\n")
    if args.page:
        machine = f"{facts['cpus']} CPUs, Python {facts['python']}"
        page = updated(args.page.read_text(), parts, date=date, machine=machine, length=length)
        args.page.write_text(page)


def _misses(figures: Sequence[Figure]) -> bool:
    return any(figure.met is False for figure in figures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.bench", description=_about)
    add = parser.add_argument
    add("--seconds", type=float, default=3.0, help="of each run (default %(default)s)")
    add("--repeat", type=int, default=5, metavar="ROUNDS", help="(default %(default)s)")
    add(
        "--only",
        action="append",
        choices=list(PARTS),
        metavar="PART",
        help=f"one of {', '.join(PARTS)}; repeatable",
    )
    add("--threshold", action="store_true", help="fail if a figure misses its target")
    add("--page", type=Path, metavar="FILE", help="renew the rows of the table of figures in that page")
    add("--json", type=Path, metavar="FILE", help="write every sample there")
    add(
        "--peer",
        choices=("auto", "mosec", "none"),
        default="auto",
        help="(default %(default)s: if installed)",
    )
    add("--peer-python", default=sys.executable, metavar="PATH", help="of an environment that has the peer")
    add("--load", choices=("auto", "c", "python"), default="auto", help="language of the load client")
    add("--cache", type=Path, default=Path(".cache"), help="for what is built (default %(default)s)")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _setting(args: argparse.Namespace) -> Setting:
    """Raises LoadFailed: a peer or a client that was asked for is not there."""
    peer = "" if args.peer == "none" else _python_with_mosec(args.peer_python)
    if args.peer == "mosec" and not peer:
        raise LoadFailed(f"{args.peer_python}: mosec is not installed there")
    return Setting(
        load_client(args.load, args.cache / "bench"),
        args.seconds,
        args.repeat,
        peer,
        args.cache / "models",
        args.cache / "wheels",
        _ignore if args.quiet else _progress,
    )


def _python_with_mosec(python: str) -> str:
    """The interpreter, or nothing if it cannot import mosec."""
    if python == sys.executable:
        return python if importlib.util.find_spec("mosec") else ""
    done = subprocess.run([python, "-c", "import mosec"], check=False, capture_output=True)
    return python if done.returncode == 0 else ""


def _progress(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)


def _ignore(text: str) -> None:
    del text


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


if __name__ == "__main__":
    sys.exit(main())
