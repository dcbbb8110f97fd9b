"""Batches that are with a worker and that nobody waits for any more: the worker is told to end them.

Looked for at the end of a turn in which a request was answered while its batch was under way, so it costs a cancelled
batch one look, and a batch that is served nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._batch import Batch
    from ._lane import Lane
    from ._stage import Link
    from ._terminal import Terminal


def give_back(batch: Batch, terminal: Terminal) -> None:
    """The worker will not begin an abandoned batch: its rows are free before its result comes.

    Nobody awaits them, so nothing is left to be answered; the result then finds an empty batch.
    """
    ranges, batch.ranges = batch.ranges, []
    for first, count in ranges:
        terminal.let_go(batch.lane, first, count)


def abandon_dead(link: Link, batches: Iterable[Batch], lane: Lane) -> None:
    """Tells a worker once of each batch of a model without an unanswered request.

    Args:
        link: to the worker.
        batches: what is with it.
        lane: the model; its mark is taken away.
    """
    slots = lane.slots
    slots.has_ghosts = False
    for batch in batches:
        if batch.lane is lane and not batch.abandoned:
            if any(slots.any_live(first, count) for first, count in batch.ranges):
                continue
            batch.abandoned = True
            lane.stats.batches_abandoned += 1
            link.abandon(batch.number)
