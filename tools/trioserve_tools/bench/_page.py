"""The figures as a table in a page of the documentation: measured rows are renewed, the others stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trioserve_tools import markdown_table
from trioserve_tools.targets import number

from ._figures import Figure, PartResult
from ._measure import Sample, spread_of

COLUMNS: Final = (
    "figure",
    "median",
    "range",
    "target",
    "verdict",
    "date",
    "machine, others on it",
    "command",
)
BEGIN: Final = "<!-- figures: begin (python -m trioserve_tools.bench --page) -->\n"
END: Final = "<!-- figures: end -->\n"


def updated(page: str, parts: Sequence[PartResult], *, date: str, machine: str, length: str) -> str:
    """The page with the rows of all figures that were measured.

    Args:
        page: With the marks `BEGIN` and `END`.
        parts: What was measured.
        date: When.
        machine: What it is, in a few words.
        length: The options that say how long and how often was measured.

    Raises:
        ValueError: The page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no marks between which the figures stand")
    rows = {cells[0]: cells for cells in markdown_table.parse(COLUMNS, table)}
    for part in parts:
        busy = f"{machine}, {others(part)}" if part.rounds else machine
        command = f"`python -m trioserve_tools.bench --only {part.name} {length}`"
        for figure in part.figures:
            if figure.spread is not None:
                rows[figure.title] = [*_figure_cells(figure), date, busy, command]
    return f"{before}{BEGIN}{markdown_table.render(COLUMNS, list(rows.values()))}{END}{after}"


def others(part: PartResult) -> str:
    """How busy the machine was with anything else, and what of it was given to others."""
    samples: list[Sample] = [sample for one in part.rounds.values() for sample in one]
    busy = spread_of(samples, lambda sample: sample.others)
    stolen = spread_of(samples, lambda sample: sample.stolen)
    return f"others {busy.median:.0%} of it, stolen {stolen.median:.0%}"


def _figure_cells(figure: Figure) -> list[str]:
    spread = figure.spread
    if spread is None:
        raise AssertionError("a figure without a value has no row: this is a bug")
    return [
        figure.title,
        f"{number(spread.median)} {figure.unit}".strip(),
        f"{number(spread.low)} to {number(spread.high)}",
        f"{figure.target} {figure.unit}".strip(),
        "met" if figure.met else "missed",
    ]
