"""What a client keeps apart from its connections: shared by the asynchronous and the blocking one."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator

from trioserve.tls import TlsStream, client_context
from trioserve_protocol import DEFAULT_LIMITS, Limits, Signature

from ._address import Address, TcpAddress, parse_url
from ._calls import ModelKey
from ._failures import ConnectFailed, TlsFailed
from ._retry import Reconnector, RetryBudget, RetryPolicy
from ._session import Session

MAX_TOKEN_NBYTES = 4096
"""What AUTH may hold."""


class Core:
    """A server's address, what is known about it, and how patient the client is.

    Attributes:
        address: Where it is.
        policy: About retries.
        budget: Tokens for retries, shared by all calls.
        reconnector: Spaces attempts to connect out.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None,
        token: str | None,
        tls: ssl.SSLContext | None,
        retry: RetryPolicy | None,
        limits: Limits | None,
    ) -> None:
        """Read the settings that both clients take; raises ValueError for a bad URL or token."""
        self.address: Address = parse_url(url)
        self.policy = RetryPolicy() if retry is None else retry
        self.budget = RetryBudget(self.policy)
        self.reconnector = Reconnector(self.policy)
        self._tenant = tenant
        encrypted = isinstance(self.address, TcpAddress) and self.address.tls
        if tls is not None and not encrypted:
            raise ValueError(f"tls: expected none, because {self.address} is not encrypted; tls:// is")
        self._tls = client_context() if encrypted and tls is None else tls
        self._token = None if token is None else _token_bytes(token)
        self._limits = DEFAULT_LIMITS if limits is None else limits
        self._signatures: dict[ModelKey, Signature] = {}

    def key(self, model: str, version: int, tenant: str | None) -> ModelKey:
        """Return what a call's handle stands for."""
        return ModelKey(model, version, self._tenant if tenant is None else tenant)

    def session(self) -> Session:
        """Return the conversation for a new connection."""
        return Session(self._signatures, self._limits, self._token)

    def secured(self, sock: socket.socket) -> Generator[bool, None, socket.socket | TlsStream]:
        """Agree on TLS over a new connection, if the URL asks for it.

        Yields:
            Whether the socket must be writable to go on; else it must be readable.

        Returns:
            What to talk over, which the caller owns.

        Raises:
            OSError: it failed; the socket is closed.

        Cancellation:
            Closing the generator closes the socket, unless it is done.
        """
        if self._tls is None or not isinstance(self.address, TcpAddress):
            return sock
        stream = TlsStream(sock, self._tls, server_side=False, server_hostname=self.address.host)
        try:
            while True:
                try:
                    stream.handshake()
                except BlockingIOError:
                    yield bool(stream.unsent_nbytes)
                else:
                    return stream
        except BaseException:
            sock.close()
            raise

    def connect_failed(self, error: OSError | None, now_s: float) -> ConnectFailed:
        """Count an attempt to connect that failed (None: it took too long); returns the error for the callers."""
        reason = (
            f"no answer within {self.policy.connect_timeout_s:g} s"
            if error is None
            else error.strerror or error
        )
        if isinstance(error, ssl.SSLError):
            message = f"cannot trust {self.address}: {_tls_reason(error)}"
            failure: ConnectFailed = TlsFailed(message, retryable=False)
        else:
            failure = ConnectFailed(f"cannot connect to {self.address}: {reason}")
        failure.__cause__ = error
        self.reconnector.failed(failure, now_s)
        return failure


def _tls_reason(error: ssl.SSLError) -> str:
    """Return what is wrong, and what might be done about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}; which authorities are trusted is set by a CA file"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection ended in the handshake"
    if error.reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS there; without it, its address begins with tcp://"
    return (error.reason or str(error)).lower().replace("_", " ")


def _token_bytes(token: str) -> bytes:
    """Return a token as it is sent. The message of a refusal does not show it."""
    data = token.encode()
    if not 0 < len(data) <= MAX_TOKEN_NBYTES:
        raise ValueError(f"token: expected 1 to {MAX_TOKEN_NBYTES:,} bytes, got {len(data):,}")
    return data
