"""Opening a connection, without waiting: the caller waits, in its own way, for the sockets that are handed to it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

from ._address import TcpAddress, UnixAddress


class Endpoint(NamedTuple):
    """One address to try."""

    family: int
    sockaddr: Any


def unix_endpoint(address: UnixAddress) -> Endpoint:
    """Return where a Unix socket is."""
    return Endpoint(socket.AF_UNIX, address.sockaddr)


def literal_endpoint(address: TcpAddress) -> Endpoint | None:
    """Return where a literal address is; None for a name that must be looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address.host)
        except OSError:
            continue
        return Endpoint(family, (address.host, address.port))
    return None


def found_endpoints(infos: Iterable[tuple[Any, ...]]) -> list[Endpoint]:
    """Return what `getaddrinfo` found, in its order, each address once."""
    return list(dict.fromkeys(Endpoint(info[0], info[4]) for info in infos))


def dial(endpoints: Iterable[Endpoint]) -> Generator[socket.socket, None, socket.socket]:
    """Connect to the first endpoint that answers.

    Yields:
        A socket that is connecting: go on when it is writable.

    Returns:
        A connected, non-blocking socket, which the caller owns.

    Raises:
        OSError: none answered; the error is the last one's.

    Cancellation:
        Closing the generator closes the socket that is connecting.
    """
    failure: OSError = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    for endpoint in endpoints:
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if endpoint.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(endpoint.sockaddr)
            if code == errno.EINPROGRESS:
                yield sock
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            sock.close()
            failure = error
            continue
        except BaseException:
            sock.close()
            raise
        if not code:
            return sock
        sock.close()
        failure = OSError(code, os.strerror(code))
    raise failure
