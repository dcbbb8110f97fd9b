"""Programs in C that come with these tools: compiled where they are needed, once for each text of their source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

COMPILERS: Final = ("cc", "gcc", "clang")

SHARED: Final = Path(__file__).with_name("program.h")
"""What all of them include."""


class NoProgram(Exception):
    """A program cannot be had here. `str()` says why."""


def compiled(source: Path, cache: Path) -> Path:
    """The program of a source.

    Args:
        source: One file in C that needs nothing but `SHARED`, the C library and its mathematics.
        cache: Folder for compiled programs; made if needed.

    Raises:
        NoProgram: There is no compiler, or it refuses the source.
    """
    text = hashlib.sha256(SHARED.read_bytes() + source.read_bytes()).hexdigest()
    program = cache / f"{source.stem}-{text[:16]}"
    if program.exists():
        return program.resolve()
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NoProgram(f"no C compiler: none of {', '.join(COMPILERS)} is installed")
    cache.mkdir(parents=True, exist_ok=True)
    # Another process may be compiling the same: each moves a whole program into place.
    fresh = program.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [compiler, "-O2", "-I", str(SHARED.parent), "-o", str(fresh), str(source), "-lm"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise NoProgram(f"{compiler} failed: {done.stderr.strip()}")
    fresh.rename(program)
    return program.resolve()
