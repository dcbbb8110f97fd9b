"""A well-behaved client: `python -m trioserve_tools.drill.neighbour PORT`.

It asks the model `double` one thing at a time, a millisecond after each answer, until its standard input is closed.
It prints an empty line when it has begun, and what it felt, as JSON, when it ends.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Final

import numpy as np

from trioserve_protocol import HEADER_NBYTES, W0_RESULT, FrameType, bind_frame
from trioserve_tools.drill._wire import HANDLE, infer

PAUSE_S: Final = 0.001
"""Between an answer and the next request: it is there to feel others, not to load the server."""

ANSWER_S: Final = 10.0


def receive(sock: socket.socket) -> bytes:
    """One frame.

    Raises:
        ConnectionError: There is no whole frame any more.
    """
    head = sock.recv(HEADER_NBYTES, socket.MSG_WAITALL)
    body = int.from_bytes(head[4:8], "little")
    data = head + (sock.recv(body, socket.MSG_WAITALL) if body else b"")
    if len(data) != HEADER_NBYTES + body:
        raise ConnectionError("the server closed the connection")
    return data


def main(argv: list[str]) -> int:
    """Asks until it is told to stop."""
    latencies_us: list[float] = []
    failures = 0
    row = np.arange(128, dtype=np.float32)
    request, expected = infer(7, row.tobytes()), (row[:64] * 2).tobytes()
    with socket.create_connection(("127.0.0.1", int(argv[0])), timeout=ANSWER_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(bind_frame(1, HANDLE, "double"))
        if receive(sock)[3] != FrameType.BOUND:
            raise ConnectionError("the model `double` is not there")
        print(flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            sent_ns = time.monotonic_ns()
            try:
                sock.sendall(request)
                reply = receive(sock)
            except OSError:
                failures += 1
                break
            latencies_us.append((time.monotonic_ns() - sent_ns) / 1000)
            right = reply[:4] == W0_RESULT.to_bytes(4, "little") and reply[HEADER_NBYTES:] == expected
            failures += not right
    print(json.dumps({"latencies_us": latencies_us or [float("inf")], "failures": failures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
