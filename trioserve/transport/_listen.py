"""Listening sockets, and the tasks that accept from them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog
import trio

log = structlog.get_logger(__name__)

ACCEPT_BURST: Final = 64
"""Connections accepted in one go before others get a turn."""

EXHAUSTED_PAUSE_S: Final = 0.1
"""How long accepting rests when the process has no descriptor left: waiting for readability would spin."""

KEEPALIVE_S: Final = (60, 15, 4)
"""A client that has vanished without a word is missed after 60 + 4 x 15 s: idle time, interval, probes."""

PORT_TRIES: Final = 8
"""How often a free port is looked for that is free on every address of the host."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
_OF_ONE_CONNECTION: Final = frozenset(
    {
        errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETDOWN,
        errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""What `accept` reports of a connection that failed before it was accepted; see accept(2), "Error handling"."""

_NOT_HERE: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class Listener:
    """One bound socket. Clients are let in from `run` on: until then the system refuses them.

    Args:
        sock: bound, non-blocking, not listening.
        address: what a client connects to, as a URL.
        backlog: connections that the kernel holds ready.
        path: the socket's file, if it has one.

    Ownership: `close` closes the socket and removes its file.
    """

    def __init__(self, sock: socket.socket, address: str, backlog: int, path: Path | None = None) -> None:
        self._sock: Final = sock
        self.address: Final = address
        self._backlog: Final = backlog
        self._path: Final = path
        self._inode: Final = _inode(path)

    @property
    def is_local(self) -> bool:
        """Whether it is a Unix socket."""
        return self._path is not None

    def __enter__(self) -> Self:
        """Nothing: the socket is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    async def run(
        self,
        serve: Callable[[socket.socket], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accepts until cancelled, then closes.

        Args:
            serve: takes over a connected, non-blocking socket, and closes it if it raises.
            task_status: started when clients can connect.

        Raises:
            OSError: another process has come to listen on the address.
        """
        with self:
            self._sock.listen(self._backlog)
            task_status.started()
            try:
                await self._accept(serve)
            finally:
                # Who is connected as far as the kernel is concerned is told that the server stops, not reset.
                with contextlib.suppress(OSError):
                    for _ in range(1 + self._backlog // ACCEPT_BURST):
                        _accept_burst(self._sock, serve)

    async def _accept(self, serve: Callable[[socket.socket], None]) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                _accept_burst(self._sock, serve)
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.warning("accept_paused", reason=error.strerror, pause_s=EXHAUSTED_PAUSE_S)
                await trio.sleep(EXHAUSTED_PAUSE_S)

    def close(self) -> None:
        """Closes the socket and removes its file, unless that is another server's by now. Idempotent."""
        if self._sock.fileno() < 0:
            return
        self._sock.close()
        if self._path is not None and _inode(self._path) == self._inode:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _accept_burst(sock: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    for _ in range(ACCEPT_BURST):
        try:
            peer, _ = sock.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _OF_ONE_CONNECTION:
                continue
            raise
        if _prepare(peer):
            serve(peer)


def _prepare(peer: socket.socket) -> bool:
    """Sets a connection up; False, and closed, if it is broken already."""
    try:
        peer.setblocking(False)
        if peer.family != socket.AF_UNIX:
            idle_s, interval_s, probes = KEEPALIVE_S
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    except OSError:
        peer.close()
        return False
    return True


async def listen_tcp(host: str, port: int, backlog: int, *, scheme: str = "tcp") -> list[Listener]:
    """Binds to every address of a host.

    Args:
        host: name or address.
        port: 0 for a free one, the same for all addresses.
        backlog: connections that the kernel holds ready.
        scheme: what the addresses' URLs begin with.

    Raises:
        OSError: the host is unknown or an address is taken; then nothing is left open.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _cannot_listen(error, f"{scheme}://{host}:{port}") from error
    addresses: list[tuple[int, Any]] = [(family, address) for family, _, _, _, address in found]
    for _ in range(PORT_TRIES - 1):
        try:
            return _bind_all(addresses, port, backlog, scheme)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _bind_all(addresses, port, backlog, scheme)


def _bind_all(addresses: Sequence[tuple[int, Any]], port: int, backlog: int, scheme: str) -> list[Listener]:
    """Binds to every address that this machine has; to one at least."""
    missing: OSError | None = None
    with contextlib.ExitStack() as opened:
        listeners: list[Listener] = []
        for family, address in addresses:
            try:
                sock = _bound(family, (address[0], port, *address[2:]))
            except OSError as error:
                failure = _cannot_listen(error, f"{scheme}://{_shown(family, address[0])}:{port}")
                if error.errno not in _NOT_HERE:
                    raise failure from error
                missing = failure  # `localhost` on a machine without IPv6, say
                continue
            port = sock.getsockname()[1]
            url = f"{scheme}://{_shown(family, address[0])}:{port}"
            listeners.append(opened.enter_context(Listener(sock, url, backlog)))
        if missing is not None and not listeners:
            raise missing
        opened.pop_all()
    return listeners


def _shown(family: int, host: str) -> str:
    return f"[{host}]" if family == socket.AF_INET6 else host


def _cannot_listen(error: OSError, url: str) -> OSError:
    """The same error with words that say where."""
    return type(error)(error.errno, f"cannot listen on {url}: {error.strerror or error}")


def _bound(family: int, address: tuple[str | int, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_unix(path: str, backlog: int, *, private: bool = False) -> Listener:
    """Binds to a Unix socket. A stale socket file is replaced; any other file, or a socket that is served, is not.

    Args:
        path: of the socket's file, which is removed when the listener is closed.
        backlog: connections that the kernel holds ready.
        private: whether only the user that runs the server may connect, whatever the umask is.

    Raises:
        OSError: the path is taken or cannot be made.
    """
    file = Path(path).absolute()
    _remove_stale(file)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    # Of the whole process, and so for a moment only: a mode that is changed later would leave a gap.
    umask = os.umask(0o177) if private else -1
    try:
        sock.bind(str(file))
    except OSError as error:
        sock.close()
        raise _cannot_listen(error, f"unix://{file}") from error
    finally:
        if private:
            os.umask(umask)
    return Listener(sock, f"unix://{file}", backlog, file)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is in the way", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another process serves this socket", str(path))


def _inode(path: Path | None) -> tuple[int, int] | None:
    """What tells a file from another one that has come to its place."""
    if path is None:
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
