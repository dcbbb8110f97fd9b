"""Where a server listens: the URL forms the client understands."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 7001


class TcpAddress(NamedTuple):
    """A TCP endpoint. ``host`` is a name or a literal address without brackets."""

    host: str
    port: int
    tls: bool = False
    """Whether the connection is encrypted."""

    def __str__(self) -> str:
        """Return the URL that `parse_url` turns into this address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"


class UnixAddress(NamedTuple):
    """A Unix stream socket. A ``path`` that starts with ``@`` is in the abstract namespace."""

    path: str

    def __str__(self) -> str:
        """Return the URL that `parse_url` turns into this address."""
        return f"unix://{self.path}"

    @property
    def sockaddr(self) -> str:
        """The address as the socket calls want it."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path


Address = TcpAddress | UnixAddress

_PLAIN = {"tcp"}
_ENCRYPTED = {"tls", "trioserves"}


def parse_url(url: str) -> Address:
    """Read a server's URL.

    Args:
        url: ``tcp://host:port``, ``tcp://[v6]:port``, ``host:port`` (the port defaults to 7001), ``tls://host:port``
            or ``trioserves://host:port`` for an encrypted connection, or ``unix:///path`` (``unix://@name`` for the
            abstract namespace).

    Raises:
        ValueError: the URL has another form; the message says which forms there are.
    """
    parts = urlsplit(url if "://" in url else f"tcp://{url}")
    if parts.scheme == "unix":
        path = unquote(parts.netloc + parts.path)
        if path in ("", "/", "@"):
            raise _refusal(url, "the path is empty")
        return UnixAddress(path)
    if parts.scheme not in _PLAIN | _ENCRYPTED:
        raise _refusal(url, f"scheme {parts.scheme!r}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise _refusal(url, "something follows the port")
    if not parts.hostname:
        raise _refusal(url, "the host is empty")
    try:
        port = parts.port
    except ValueError:
        raise _refusal(url, "the port is not a number from 1 to 65535") from None
    if port == 0:
        raise _refusal(url, "the port is not a number from 1 to 65535")
    return TcpAddress(parts.hostname, DEFAULT_PORT if port is None else port, parts.scheme in _ENCRYPTED)


def _refusal(url: str, reason: str) -> ValueError:
    return ValueError(
        f"{url!r} is no server address ({reason}): expected tcp://host:port, tls://host:port or unix:///path"
    )
