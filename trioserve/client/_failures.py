"""Errors that only a client can see: the server did not answer, or could not be asked."""

from __future__ import annotations

import copy
from typing import TypeVar

from trioserve.errors import FailedPrecondition, NotExecuted, TrioserveError, Unavailable, error_for
from trioserve_protocol import Error

Failure = TypeVar("Failure", bound=TrioserveError)


class ConnectFailed(Unavailable):
    """The server could not be reached, so nothing was sent. Retryable."""


class TlsFailed(ConnectFailed):
    """There is somebody, but no trust: TLS could not be agreed. Not retryable: what is wrong does not go away."""


class ConnectionLost(Unavailable):
    """The connection broke with the request in flight: it may have been executed or not. Retryable."""


class NotSent(NotExecuted):
    """The server never took the request: it was not sent, or sent after what GOAWAY counted.

    The client sends such a request again on another connection, outside the retry budget, since the server has done
    nothing for it yet.
    """


class ClientClosed(FailedPrecondition):
    """The client was used after, or while, it was closed."""


def exception_of(event: Error) -> TrioserveError:
    """Return what an ERROR frame says, as the class that the server raised."""
    after_us = event.retry_after_us
    return error_for(
        event.code,
        event.message,
        None if after_us is None else after_us * 1e-6,
        retryable=event.retryable and after_us is not None,
    )


def copy_of(error: Failure) -> Failure:
    """Return an error for one caller of several: each raises its own, with its own traceback."""
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine
