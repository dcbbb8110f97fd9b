"""Looking at the repository now and then, and ordering what it comes to once it has settled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from trioserve.transport import ModelOrder

from ._contents import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Settled:
    """Says when a folder has changed and is not being changed any more.

    Whoever copies files into it is not done with the first, so a change counts only when two looks in a row have seen
    the same. What was acted on once is not acted on again, whatever came of it.

    Args:
        mark: of the folder, as it is served.
    """

    def __init__(self, mark: str) -> None:
        self._acted = self._last = mark

    def look(self, mark: str) -> bool:
        """Takes what the folder is now; whether to act."""
        stable, self._last = mark == self._last, mark
        if not stable or mark == self._acted:
            return False
        self._acted = mark
        return True


async def poll_repository(repository: str, seconds: float, submit: Callable[[ModelOrder], None]) -> None:
    """Orders a reload of all that has changed whenever a repository has changed and settled. Until cancelled.

    Args:
        repository: a folder of models, a model's folder or a Python file.
        seconds: between two looks.
        submit: takes the order.
    """
    path = Path(repository)
    settled = Settled(await trio.to_thread.run_sync(mark_of, path))
    while True:
        await trio.sleep(seconds)
        if settled.look(await trio.to_thread.run_sync(mark_of, path)):
            submit(ModelOrder("reload"))
