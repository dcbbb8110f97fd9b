"""The fault scoreboard: a table in Markdown that is written here and read back, so that one drill can renew its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from trioserve_tools import markdown_table

from ._drill import Drill, Finding

_HEAD: Final = """\
# Fault scoreboard

What the server is promised to survive, and what came of it the last time each fault was brought about on purpose.
`make drill` runs all of them and writes this page; a row's command repeats that row. Figures of time were taken on
the machine and in the load of that day.

A verdict is *held* if every value with a target reached it.

"""

NOT_RUN: Final = "not run"
HELD: Final = "held"
BROKEN: Final = "BROKEN"


@dataclass(frozen=True, slots=True)
class Row:
    """One drill's line. The fields are its columns."""

    drill: str
    fault: str
    must: str
    target: str
    last_figure: str
    verdict: str
    seed: str
    date: str
    command: str


_FIELDS: Final = [column.name for column in fields(Row)]
_COLUMNS: Final = [name.replace("_", " ") for name in _FIELDS]


def blank_row(drill: Drill) -> Row:
    """A drill that was never run."""
    return Row(drill.name, drill.fault, drill.must, "", "", NOT_RUN, "", "", "")


def finished_row(drill: Drill, findings: Sequence[Finding], *, seed: int, date: str, command: str) -> Row:
    """What a drill found."""
    return Row(
        drill.name,
        drill.fault,
        drill.must,
        "; ".join(finding.promise for finding in findings if finding.target),
        "; ".join(map(str, findings)),
        HELD if all(finding.held for finding in findings) else BROKEN,
        str(seed),
        date,
        f"`{command}`",
    )


def failed_row(drill: Drill, reason: str, verdict: str, *, seed: int, date: str, command: str) -> Row:
    """A drill that did not come to an end."""
    return Row(drill.name, drill.fault, drill.must, "", reason, verdict, str(seed), date, f"`{command}`")


def render(rows: Sequence[Row]) -> str:
    """The page."""
    return _HEAD + markdown_table.render(_COLUMNS, [[getattr(row, name) for name in _FIELDS] for row in rows])


def parse(page: str) -> dict[str, Row]:
    """The rows of a page that `render` made, by drill."""
    return {cells[0]: Row(*cells) for cells in markdown_table.parse(_COLUMNS, page)}


def merged(drills: Sequence[Drill], old: Mapping[str, Row], new: Mapping[str, Row]) -> list[Row]:
    """A row for every drill: the new one, else the old one, else a blank one."""
    return [new.get(drill.name) or old.get(drill.name) or blank_row(drill) for drill in drills]
