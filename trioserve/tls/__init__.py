"""TLS for both ends of a connection: a non-blocking stream, and what a client trusts."""

from __future__ import annotations

from ._contexts import ALPN, client_context
from ._stream import RawSocket, TlsStream

__all__ = ["ALPN", "RawSocket", "TlsStream", "client_context"]
