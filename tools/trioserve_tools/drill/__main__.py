"""`python -m trioserve_tools.drill`, `make drill`."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

from trioserve_tools.drill import __doc__ as _about
from trioserve_tools.drill._drill import (
    QUICK_OPTIONS,
    SERVED,
    Drill,
    Field,
    Finding,
    NotRun,
    options,
    root_of,
)
from trioserve_tools.drill._drills import DRILLS
from trioserve_tools.drill._scoreboard import (
    BROKEN,
    NOT_RUN,
    Row,
    failed_row,
    finished_row,
    merged,
    parse,
    render,
)
from trioserve_tools.process_figures import is_alive
from trioserve_tools.server_process import ServerProcess, server_process

SCOREBOARD: Final = Path("docs/reference/fault-scoreboard.md")
BY_NAME: Final = {drill.name: drill for drill in DRILLS}


def main(argv: list[str] | None = None) -> int:
    """Runs drills; 0 if everything that was run held."""
    args = _parser().parse_args(argv)
    if args.list:
        for drill in DRILLS:
            print(f"{drill.name}: {drill.fault}; {drill.must}")
        return 0
    chosen = [BY_NAME[name] for name in args.only] if args.only else list(DRILLS)
    rows = trio.run(Runner(args).run_all, chosen)
    path = args.scoreboard or (None if args.quick else SCOREBOARD)
    if path is not None and path.parent.is_dir():
        old = parse(path.read_text()) if path.exists() else {}
        path.write_text(render(merged(DRILLS, old, {row.drill: row for row in rows})))
        print(f"wrote {path}")
    broken = [row.drill for row in rows if row.verdict == BROKEN]
    print(
        f"{len(rows) - len(broken)} of {len(rows)} held"
        + (f"; broken: {', '.join(broken)}" if broken else "")
    )
    return 1 if broken else 0


class Runner:
    """Runs drills one after the other, most of them on one server.

    Args:
        args: What the command line says.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._quick: Final[bool] = args.quick
        self._seed: Final[int] = args.seed
        self._count: Final[int | None] = args.count
        self._quiet: Final[bool] = args.quiet
        self._date: Final = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d")

    async def run_all(self, drills: Sequence[Drill]) -> list[Row]:
        """Runs them and prints each as it ends; a server that a drill has killed is replaced for the next."""
        rows: list[Row] = []
        left = list(drills)
        while left:
            async with AsyncExitStack() as stack:
                settings = QUICK_OPTIONS if self._quick else ()
                server = await stack.enter_async_context(server_process(SERVED, *options(*settings)))
                while left and is_alive(server.pid):
                    row = await self._run_one(left.pop(0), server)
                    rows.append(row)
                if is_alive(server.pid):
                    await server.end()
        return rows

    async def _run_one(self, drill: Drill, server: ServerProcess) -> Row:
        count = self._count or (drill.quick_count if self._quick else drill.count)
        field = Field(count, self._seed, drill.name, self._quick, self._progress, server)
        print(f"{drill.name}: {drill.fault}", flush=True)
        started_s = time.monotonic()
        try:
            findings = await drill.run(field)
        except Exception as error:  # noqa: BLE001  whatever went wrong is what the drill found
            cause = root_of(error)
            if isinstance(cause, NotRun):
                return self._failed(drill, str(cause), NOT_RUN)
            return self._failed(drill, _in_a_line(cause), BROKEN)
        row = finished_row(drill, findings, seed=self._seed, date=self._date, command=self._command(drill))
        for finding in findings:
            print(f"    {_told(finding)}")
        print(f"    {row.verdict}, {time.monotonic() - started_s:.1f} s", flush=True)
        return row

    def _failed(self, drill: Drill, reason: str, verdict: str) -> Row:
        print(f"    {verdict}: {reason}", flush=True)
        return failed_row(
            drill, reason, verdict, seed=self._seed, date=self._date, command=self._command(drill)
        )

    def _command(self, drill: Drill) -> str:
        words = f"python -m trioserve_tools.drill --only {drill.name} --seed {self._seed}"
        words += f" --count {self._count}" if self._count else ""
        return words + (" --quick" if self._quick else "")

    def _progress(self, text: str) -> None:
        if not self._quiet:
            print(f"    ... {text}", file=sys.stderr, flush=True)


def _told(finding: Finding) -> str:
    if finding.target is None:
        return str(finding)
    return f"{finding}, promised {finding.target}{'' if finding.held else '  <-- BROKEN'}"


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.drill", description=_about)
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="small counts; figures of time are told, not judged; writes nothing",
    )
    add("--only", action="append", choices=list(BY_NAME), metavar="DRILL", help="repeatable; see --list")
    add("--seed", type=int, default=1, help="of all that is drawn by chance (default %(default)s)")
    add("--count", type=int, help="how often each drill does what it does, in place of its own number")
    add("--scoreboard", type=Path, metavar="FILE", help=f"the page to write (default {SCOREBOARD})")
    add("--list", action="store_true", help="say what there is")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
