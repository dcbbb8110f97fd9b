"""The page of the documentation that holds the tables."""

from __future__ import annotations


def marks(name: str) -> tuple[str, str]:
    """What stands before and behind a table."""
    command = f"python -m trioserve_tools.scheduling --only {name} --page"
    return f"<!-- {name}: begin ({command}) -->\n", f"<!-- {name}: end -->\n"


def updated(page: str, name: str, table: str) -> str:
    """The page with a new table.

    Args:
        page: With the table's marks.
        name: Which table.
        table: Its lines.

    Raises:
        ValueError: The page lacks a mark.
    """
    begin, end = marks(name)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks between which the table {name!r} stands")
    return f"{before}{begin}{table}{end}{after}"
