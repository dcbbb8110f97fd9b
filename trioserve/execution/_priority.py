"""The priority of a worker that loads beside one that serves: idle while it loads, usual from then on.

Linux lets an idle thread run when no other wants to, and whoever wakes takes its place at once. A thread with a low
priority, a high nice value, keeps the processor for its slice of some milliseconds all the same: reloads under load
had a p99 of 4.7 ms where it was 1.6 ms without.

Becoming idle is anybody's right. Leaving it is not: without CAP_SYS_NICE or a limit that allows it the worker would be
idle for good, so its priority is not touched at all. Every thread has its own, and begins with that of the one that
started it, so raising goes through all of them.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 10.0
"""Longest that a worker loads only when nobody else wants the processor. After that it takes its share: it would not
end on a machine that is never idle."""

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
    """Makes a child that has just been started idle; False if it was left as it is."""
    if not may_raise():
        return False
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # it has ended; whoever waits for it is told why
        return False
    return True


def raise_again(pid: int) -> None:
    """Gives all threads of a child the usual priority."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  names are all that is wanted
            with suppress(OSError):
                os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
