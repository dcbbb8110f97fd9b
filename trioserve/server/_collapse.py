"""Nurseries are private: callers get the error, not the group that carried it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collapsed() -> Iterator[None]:
    """Raises the first error of an exception group in its place; the group stays its context."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
