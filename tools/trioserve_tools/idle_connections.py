"""Connections that are open and do nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from typing import Final

from trioserve_protocol import HEADER, HEADER_NBYTES, W0_BOUND, bind_frame

SPARE_FDS: Final = 100
"""Descriptors that this process needs for anything else."""


def affordable(count: int) -> int:
    """Raises this process's limit of descriptors, which its children inherit, to what `count` connections need.

    Returns:
        How many connections fit into the limit, at most `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FDS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(count, max(soft, wanted) - SPARE_FDS)


@contextlib.contextmanager
def idle_connections(port: int, count: int, model: str) -> Iterator[list[socket.socket]]:
    """Connections that have each bound a model and then fallen silent.

    Blocks the calling thread for about 0.1 ms for each.

    Args:
        port: Of a server on this machine.
        count: How many; see `affordable`.
        model: What they bind.

    Raises:
        ConnectionError: The server refuses one.
    """
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            sock.sendall(bind_frame(1, 1, model))
            head = sock.recv(HEADER_NBYTES, socket.MSG_WAITALL)
            if len(head) < HEADER_NBYTES or HEADER.unpack(head)[0] != W0_BOUND:
                raise ConnectionError(f"connection {len(opened) + 1} of {count} is refused")
            sock.recv(HEADER.unpack(head)[1], socket.MSG_WAITALL)
            opened.append(sock)
        yield opened
