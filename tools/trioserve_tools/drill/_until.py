"""Waiting for what sends no event: other processes, and their counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

POLL_S: Final = 0.004


async def until(condition: Callable[[], bool], *, within_s: float) -> bool:
    """Looks again and again whether something has become true.

    Args:
        condition: It.
        within_s: Longest that is waited, in seconds.

    Returns:
        Whether it has.
    """
    end_s = trio.current_time() + within_s
    while not condition():
        if trio.current_time() > end_s:
            return False
        await trio.sleep(POLL_S)
    return True
