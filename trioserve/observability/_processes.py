"""What the kernel knows of a process."""

from __future__ import annotations

import os
from pathlib import Path


def resident_nbytes(pid: int) -> int:
    """Memory that a process has in RAM, what it shares with others included, bytes; 0 if there is no such process."""
    if not pid:
        return 0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
