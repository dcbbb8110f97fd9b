"""What no server in Python can be faster than: `python -m trioserve_tools.bench.baselines echo|reflector IN OUT`.

echo: answers every IN bytes of a connection with OUT bytes. It bounds one request at a time per connection.
reflector: answers every INFER frame of IN bytes with a RESULT of OUT bytes that has the frame's id; frames are taken in
columns. It bounds multiplexed requests. A BIND is answered with an empty BOUND.

Neither knows a model or checks anything. Each listens on a free port of this machine, prints it, and ends when its
standard input is closed, so it cannot outlive who started it.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable
from typing import Final

import numpy as np

from trioserve_protocol import (
    HEADER,
    HEADER_NBYTES,
    W0_BIND,
    FrameType,
    frame,
    frame_bytes,
    result_columns,
)

MAX_EVENTS: Final = 256
BUFFER_NBYTES: Final = 1 << 18

Answer = Callable[[memoryview], tuple[int, "bytes | memoryview"]]
"""What there is of a connection's bytes in; how many of them are done with, and the reply, out."""


def echo(request_nbytes: int, reply_nbytes: int) -> Answer:
    """The bare echo."""
    reply = bytes(reply_nbytes)

    def answer(data: memoryview) -> tuple[int, bytes]:
        whole = len(data) // request_nbytes
        return whole * request_nbytes, reply if whole == 1 else reply * whole

    return answer


def reflector(request_nbytes: int, reply_nbytes: int) -> Answer:
    """The bare reflector of frames."""
    zeros = np.zeros((1, reply_nbytes - HEADER_NBYTES), np.uint8)

    def answer(data: memoryview) -> tuple[int, bytes | memoryview]:
        if len(data) < HEADER_NBYTES:
            return 0, b""
        w0, body, rid = HEADER.unpack_from(data)[:3]
        if w0 == W0_BIND:
            whole = HEADER_NBYTES + body
            return (whole, frame_bytes(frame(FrameType.BOUND, rid=rid))) if len(data) >= whole else (0, b"")
        count = len(data) // request_nbytes
        rids = np.ndarray((count,), np.uint64, data, 8, (request_nbytes,))
        replies = result_columns(rids, np.broadcast_to(zeros, (count, zeros.shape[1])))
        return count * request_nbytes, replies.data.cast("B") if count else b""

    return answer


class Bare:
    """An epoll loop around an `Answer`."""

    def __init__(self, answer: Answer, request_nbytes: int) -> None:
        self._answer: Final = answer
        self._listener: Final = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.settimeout(0)
        self._epoll: Final = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(sys.stdin, select.EPOLLIN)
        self._peers: Final[dict[int, socket.socket]] = {}
        self._tails: Final[dict[int, bytes]] = {}
        self._buffer: Final = memoryview(bytearray(max(BUFFER_NBYTES, 2 * request_nbytes)))

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def run(self) -> None:
        """Serves until standard input is closed."""
        listener, stdin, poll, serve = (
            self._listener.fileno(),
            sys.stdin.fileno(),
            self._epoll.poll,
            self._serve,
        )
        while True:
            for fd, _ in poll(-1, MAX_EVENTS):
                if fd == listener:
                    self._accept()
                elif fd == stdin:
                    return
                else:
                    serve(fd)

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        peer.settimeout(0)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[peer.fileno()] = peer
        self._epoll.register(peer, select.EPOLLIN)

    def _serve(self, fd: int) -> None:
        peer, buffer, tail = self._peers[fd], self._buffer, self._tails.pop(fd, b"")
        kept = len(tail)
        if kept:
            buffer[:kept] = tail
        try:
            received = peer.recv_into(buffer[kept:] if kept else buffer)
        except OSError:
            received = 0
        if not received:
            self._epoll.unregister(fd)
            self._peers.pop(fd).close()
            return
        have = kept + received
        used, reply = self._answer(buffer[:have])
        if used != have:
            self._tails[fd] = bytes(buffer[used:have])
        if reply and peer.send(reply) != len(reply):
            raise AssertionError("a closed loop filled the socket buffer: this is a bug")


def main(argv: list[str]) -> int:
    """Runs one of them."""
    kinds = {"echo": echo, "reflector": reflector}
    kind, request_nbytes, reply_nbytes = argv[0], int(argv[1]), int(argv[2])
    bare = Bare(kinds[kind](request_nbytes, reply_nbytes), request_nbytes)
    print(bare.port, flush=True)
    bare.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
