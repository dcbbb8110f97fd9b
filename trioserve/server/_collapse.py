"""Nurseries are private: callers get the error, not the group that carried it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def collapsed() -> Iterator[None]:
    """Raises the error that an exception group carries in its place.

    Of several, what the user or the system wants (KeyboardInterrupt, SystemExit) comes first, then errors, then
    cancellation, which is only their consequence; the others are named in a note.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        first, *others = sorted(_leaves(group), key=_rank)
        for other in others:
            if not isinstance(other, trio.Cancelled):
                first.add_note(f"At the same time: {other!r}")
        _raise(first)


def _raise(error: BaseException) -> None:
    """Raises an error as it was: its cause and context are where it came from, not what was done with it here."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _rank(error: BaseException) -> int:
    if isinstance(error, trio.Cancelled):
        return 2
    return int(isinstance(error, Exception))
