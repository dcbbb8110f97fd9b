"""Simulate, and print the tables or write them into the page: `python -m trioserve_tools.scheduling`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ._page import updated
from ._tables import FULL, SHORT, TABLES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.scheduling", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TABLES), help="one table; may be repeated")
    parser.add_argument(
        "--short", action="store_true", help="a fraction of the requests: a check of the program"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the tables in that page")
    options = parser.parse_args(arguments)
    size = SHORT if options.short else FULL
    for name in options.only or TABLES:
        table = TABLES[name](size)
        print(f"{name}\n\n{table}", flush=True)
        if options.page:
            options.page.write_text(updated(options.page.read_text(), name, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
