"""The priority of a worker that loads beside one that serves: low while it loads, usual from then on.

Lowering is anybody's right. Raising again is not: without CAP_SYS_NICE or a limit that allows it the worker would stay
low for good, so it is not lowered at all. Linux has a priority for each thread; a thread begins with that of the one
that started it, so raising goes through all of them.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

NICENESS: Final = 10
"""Of 19. A thread of 0 then gets nine times the processor of a loading one."""

_CAP_SYS_NICE: Final = 1 << 23
_NICE_OFFSET: Final = 20
"""The limit counts from 1, niceness 19, to 40, niceness -20."""


def may_raise() -> bool:
    """Whether this process, and a child of it, may raise a priority that was lowered."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= _NICE_OFFSET - usual:
        return True
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) & _CAP_SYS_NICE)
    return False


def lower(pid: int) -> bool:
    """Lowers the priority of a child that has just been started; False if it was left as it is."""
    if not may_raise():
        return False
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, pid, min(usual + NICENESS, 19))
    except OSError:  # it has ended; whoever waits for it is told why
        return False
    return True


def raise_again(pid: int) -> None:
    """Gives all threads of a child the priority of this process."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  names are all that is wanted
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread), usual)
