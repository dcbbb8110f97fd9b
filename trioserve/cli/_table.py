"""Plain-text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from trioserve_protocol import DType


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lays rows out in columns.

    Args:
        header: Names of the columns.
        rows: One value a column; numbers are aligned to the right.

    Returns:
        The table without a final line break.
    """
    cells = [[str(value) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(header))
    ]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (header, ["-" * width for width in widths], *cells)
    ]
    return "\n".join(lines)


def nbytes_text(nbytes: int) -> str:
    """A size for people: `512 B`, `87.0 MiB`."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def duration_text(ns: float) -> str:
    """A time for people, to three digits: `940 ns`, `41.2 us`, `1.25 ms`, `2.00 s`."""
    value = float(ns)
    for unit in ("ns", "us", "ms"):
        if value < 999.5:
            return f"{value:.0f} ns" if unit == "ns" else f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} s"


def _three_digits(value: float) -> str:
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def dtype_text(dtype: DType) -> str:
    """A datatype as a `model.toml` says it: `f4`, `bool`, `bytes`."""
    return dtype.names[0] if dtype in {DType.BOOL, DType.BYTES, DType.BF16} else dtype.names[-1]
