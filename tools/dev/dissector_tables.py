"""Write the name tables of the Wireshark dissector from the protocol's registries.

    python tools/dev/dissector_tables.py           # rewrite protocol/dissector/trioserve_tables.lua
    python tools/dev/dissector_tables.py --check   # only say whether it is up to date

The registries of `trioserve_protocol` are the one place where a number gets its name; a test runs the check.
"""

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from trioserve_protocol import Codec, CutReason, DType, ErrorCode, Feature, FrameType, RequestClass, Tag

TABLES = Path(__file__).parents[2] / "protocol" / "dissector" / "trioserve_tables.lua"
HEAD = "-- Written by tools/dev/dissector_tables.py from the protocol's registries; a test compares them.\n"


def table(name: str, members: Iterable[Enum], number_format: str) -> str:
    """One entry of the Lua table of tables: number -> name."""
    rows = [f'    [{format(member.value, number_format)}] = "{member.name}",\n' for member in members]
    return f"  {name} = {{\n{''.join(rows)}  }},\n"


def generated() -> str:
    """The whole file."""
    parts = [
        table("FRAME_TYPES", FrameType, "#04x"),
        table("TAGS", Tag, "d"),
        table("DTYPES", DType, "d"),
        table("CLASSES", RequestClass, "d"),
        table("CODECS", Codec, "d"),
        table("CUT_REASONS", CutReason, "d"),
        table("FEATURES", Feature, "#06x"),
        table("STATUSES", ErrorCode, "#06x"),
    ]
    return f"{HEAD}return {{\n{''.join(parts)}}}\n"


def main() -> int:
    """Rewrite the file, or with --check compare it; the exit status is 1 if it was out of date."""
    new = generated()
    if "--check" not in sys.argv[1:]:
        TABLES.write_text(new, encoding="utf-8")
        return 0
    stale = not TABLES.exists() or TABLES.read_text(encoding="utf-8") != new
    if stale:
        print(f"{TABLES} is out of date: run python {sys.argv[0]}", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
