"""Listening sockets, and the tasks that accept from them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Final

import structlog
import trio

from trioserve_protocol import ErrorCode, error_frame

log = structlog.get_logger(__name__)

ACCEPT_BURST: Final = 64
"""Connections accepted in one go before others get a turn."""

EXHAUSTED_PAUSE_S: Final = 0.1
"""How long accepting rests when the process has no descriptor left: waiting for readability would spin."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """One listening socket.

    Args:
        sock: bound, listening, non-blocking.
        address: what a client connects to, as a URL.

    Ownership: `run` closes the socket when it ends.
    """

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock: Final = sock
        self.address: Final = address

    async def run(
        self,
        serve: Callable[[socket.socket], None],
        has_room: Callable[[], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accepts until cancelled.

        Args:
            serve: takes over a connected, non-blocking socket.
            has_room: whether one more connection is allowed; if not, the client is told and the connection closed.
        """
        sock = self._sock
        with sock:
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    _accept_burst(sock, serve, has_room)
                except OSError as error:
                    if error.errno not in _EXHAUSTED:
                        raise
                    log.warning("accept_paused", reason=error.strerror, pause_s=EXHAUSTED_PAUSE_S)
                    await trio.sleep(EXHAUSTED_PAUSE_S)


def _accept_burst(
    sock: socket.socket, serve: Callable[[socket.socket], None], has_room: Callable[[], bool]
) -> None:
    for _ in range(ACCEPT_BURST):
        try:
            peer, _ = sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        peer.setblocking(False)
        if not has_room():
            _refuse(peer)
            continue
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve(peer)


def _refuse(peer: socket.socket) -> None:
    with peer, contextlib.suppress(OSError):
        peer.send(error_frame(0, ErrorCode.TOO_MANY_CONNECTIONS))


def listen_tcp(host: str, port: int, backlog: int) -> list[Listener]:
    """Listens on every address of a host.

    Args:
        host: name or address.
        port: 0 for a free one, the same for all addresses.
        backlog: connections that the kernel holds ready.

    Raises:
        OSError: the host is unknown or an address is taken; then nothing is left open.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        listeners = []
        for family, _, _, _, address in found:
            sock = opened.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(backlog)
            sock.setblocking(False)
            port = sock.getsockname()[1]
            shown = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
            listeners.append(Listener(sock, f"tcp://{shown}:{port}"))
        opened.pop_all()
    return listeners


def listen_unix(path: str, backlog: int) -> Listener:
    """Listens on a Unix socket. A stale socket file is replaced; any other file, or a socket that somebody still
    serves, is not.

    Raises:
        OSError: the path is taken or cannot be made.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(path)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return Listener(sock, f"unix://{os.path.abspath(path)}")


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is in the way", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another process serves this socket", path)
