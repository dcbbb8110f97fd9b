"""A table in a Markdown page that programs write and read back, so that each row can be renewed on its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_BAR: Final = re.compile(r"(?<!\\)\|")
"""Between two cells; a bar that belongs to a cell has a backslash before it."""


def render(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a table.

    Args:
        columns: Headings.
        rows: Cells, as many as there are columns; line breaks in them become blanks.
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_escaped, cells))} |\n" for cells in lines)


def parse(columns: Sequence[str], page: str) -> list[list[str]]:
    """The rows of the table with these columns in a page; none if there is no such table."""
    found = [_cells(line) for line in page.splitlines() if line.startswith("| ")]
    try:
        start = found.index(list(columns)) + 2
    except ValueError:
        return []
    return [cells for cells in found[start:] if len(cells) == len(columns)]


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("| ").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(inner)]
