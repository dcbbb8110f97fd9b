"""Compare the combined coverage data with the floor of each room: `make coverage` runs it last.

Statements and branches count alike. The rooms in FULL decide who gets memory and which reply ends a request: there a
line that no test reaches is a promise that nobody checked.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

FULL = (
    "protocol/trioserve_protocol/",
    "trioserve/admission/",
    "trioserve/batching/",
    "trioserve/memory/_slots.py",
)
ELSEWHERE = 90.0


def measured() -> Mapping[str, Mapping[str, float]]:
    """Summary of each file, from the data that `coverage combine` left."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)]
        subprocess.run(command, check=True)
        files = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {name: entry["summary"] for name, entry in files.items()}


def percent(files: list[Mapping[str, float]]) -> float:
    """Covered statements and branches of some files, in per cent of all of theirs."""
    reached = sum(file["covered_lines"] + file["covered_branches"] for file in files)
    total = sum(file["num_statements"] + file["num_branches"] for file in files)
    return 100.0 * reached / total if total else 100.0


def room_of(name: str) -> str:
    """The entry of FULL that holds the file, else its package, else itself."""
    for prefix in FULL:
        if name.startswith(prefix):
            return prefix
    parts = name.split("/")
    return "/".join(parts[:2]) + ("/" if len(parts) > 2 else "")


def main() -> int:
    """Print one line a room; the exit status is 1 if one is below its floor."""
    rooms: dict[str, list[Mapping[str, float]]] = {}
    for name, summary in measured().items():
        rooms.setdefault(room_of(name), []).append(summary)
    below = 0
    for room, files in sorted(rooms.items()):
        floor = 100.0 if room in FULL else ELSEWHERE
        reached = percent(files)
        below += reached < floor
        print(f"{room:34} {reached:6.1f} %   floor {floor:3.0f} %{'   below' if reached < floor else ''}")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
