"""How late a bare timer is here and now: `python -m trioserve_tools.drill.bare_timer`.

A Trio task with a timerfd and nothing else, at 20 ms a time, until its standard input is closed. It prints an empty
line when it has begun, and the lateness of each time in milliseconds, as JSON, when it ends. No server can be more
punctual.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Final

import trio

PERIOD_NS: Final = 20_000_000
_ABSOLUTE: Final = 1


class _TimerSpec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


_libc: Final = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Measures until it is told to stop."""
    print(json.dumps(trio.run(_lateness_ms)))
    return 0


async def _lateness_ms() -> list[float]:
    late_ms: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_time, late_ms)
        print(flush=True)
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        nursery.cancel_scope.cancel()
    return late_ms


async def _keep_time(late_ms: list[float]) -> None:
    fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    due_ns = time.monotonic_ns()
    try:
        while True:
            due_ns += PERIOD_NS
            spec = _TimerSpec(0, 0, *divmod(due_ns, 1_000_000_000))
            if _libc.timerfd_settime(fd, _ABSOLUTE, ctypes.byref(spec), None):
                raise OSError(ctypes.get_errno(), "timerfd_settime")
            await trio.lowlevel.wait_readable(fd)
            late_ms.append((time.monotonic_ns() - due_ns) / 1e6)
            os.read(fd, 8)
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
