"""The window: how much a client may have in flight on one connection."""

from __future__ import annotations

DEFAULT_REQUESTS = 256
DEFAULT_NBYTES = 64 << 20


class CreditWindow:
    """Requests and body bytes in flight, against what the server allows.

    The limits are absolute and the last word of the server holds, also below what is in flight already: then nothing
    is sent until enough has come back. An otherwise idle connection may always send one frame.

    Attributes:
        requests_limit: Requests that may be in flight.
        nbytes_limit: Body bytes that may be in flight.
        requests: Requests in flight.
        nbytes: Body bytes in flight.
    """

    __slots__ = ("nbytes", "nbytes_limit", "requests", "requests_limit")

    def __init__(self, requests_limit: int = DEFAULT_REQUESTS, nbytes_limit: int = DEFAULT_NBYTES) -> None:
        self.requests_limit = requests_limit
        self.nbytes_limit = nbytes_limit
        self.requests = 0
        self.nbytes = 0

    def admits(self, requests: int, nbytes: int) -> bool:
        """Return whether a frame of `requests` requests and `nbytes` body bytes may be sent now."""
        if not self.requests:
            return True
        return self.requests + requests <= self.requests_limit and self.nbytes + nbytes <= self.nbytes_limit

    def take(self, requests: int, nbytes: int) -> None:
        """Note that a frame is being sent."""
        self.requests += requests
        self.nbytes += nbytes

    def give_back(self, requests: int, nbytes: int) -> None:
        """Note that requests have ended."""
        self.requests -= requests
        self.nbytes -= nbytes
        if self.requests < 0 or self.nbytes < 0:
            raise AssertionError("more credit came back than was taken: this is a bug")
