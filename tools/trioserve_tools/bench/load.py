"""A load client with a closed loop, in Python: `python -m trioserve_tools.bench.load --port P --plan FILE ...`.

The same options, plan and answer as `load.c`, for machines without a C compiler. It works in columns: one round takes
what epoll reports, receives on every connection that is ready, then checks all their replies and numbers all their
next requests in a few numpy calls, then sends. So the cost per request falls as the load rises, but it remains several
times that of the client in C: where both can run, the other one's figures count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trioserve_protocol import HEADER, HEADER_DTYPE, HEADER_NBYTES, W0_ERROR, W0_RESULT
from trioserve_tools.bench._maths import Floats
from trioserve_tools.bench._plan import Plan

TOLERANCE: Final = 1e-4
"""Absolute and relative; batches of different sizes round differently."""

DRAIN_S: Final = 5.0


class BadReply(Exception):
    """What came back is not the answer to what was sent."""


@dataclass
class Link:
    """One connection."""

    number: int
    sock: socket.socket
    buffer: memoryview
    have: int = 0
    unsent: list[memoryview] = field(default_factory=list)


class Load:
    """The closed loop.

    Args:
        plan: What is sent and expected.
        connections: How many.
        outstanding: Requests that are unanswered on each.

    Raises:
        ValueError: The plan does not allow so many outstanding ones.
    """

    def __init__(self, plan: Plan, connections: int, outstanding: int) -> None:
        if plan.kind != "frames" and outstanding > 1:
            raise ValueError("only frames can be multiplexed")
        self._plan: Final = plan
        self._outstanding: Final = outstanding
        ids = np.arange(1, connections * outstanding + 1, dtype=np.uint64)
        self._ids: Final = ids.reshape(connections, outstanding)
        """Id in flight at each place; no id is used twice."""
        self._sent_ns: Final = np.zeros((connections, outstanding), np.int64)
        self._which: Final = ((self._ids - np.uint64(1)) % np.uint64(len(plan.requests))).astype(np.intp)
        """Request of the plan that a place sends, always the same one."""
        self._out: Final = plan.requests[self._which]
        """u8[connections, outstanding, request_nbytes]"""
        if plan.kind == "frames":
            self._out_ids: Final = self._out.reshape(-1, plan.requests.shape[1])[:, 8:16].view(np.uint64)[
                :, 0
            ]
            self._out_ids[:] = ids
        self._links: Final[list[Link]] = []
        self._by_fd: Final[dict[int, Link]] = {}
        self._epoll: Final = select.epoll()
        self._latencies_ns: list[npt.NDArray[np.int64]] = []
        self._answered = 0

    def connect(self, port: int) -> None:
        """Opens the connections.

        Args:
            port: Of a server on this machine.

        Raises:
            BadReply: The server refuses the preamble.
            OSError: There is no server.
        """
        for number in range(len(self._ids)):
            link = self._open(number, port)
            self._links.append(link)
            self._by_fd[link.sock.fileno()] = link
            self._epoll.register(link.sock, select.EPOLLIN)

    def close(self) -> None:
        """Closes them."""
        for link in self._links:
            link.sock.close()
        self._epoll.close()

    def _open(self, number: int, port: int) -> Link:
        sock = socket.create_connection(("127.0.0.1", port))
        nbytes = 65_536 + self._outstanding * self._plan.reply_nbytes
        link = Link(number, sock, memoryview(bytearray(nbytes)))
        try:
            self._greet(sock)
        except BaseException:
            sock.close()
            raise
        return link

    def _greet(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._plan.preamble:
            sock.sendall(self._plan.preamble)
            w0, body, _, status = HEADER.unpack(_receive_exactly(sock, HEADER_NBYTES))[:4]
            _receive_exactly(sock, body)
            if w0 == W0_ERROR:
                raise BadReply(f"preamble: status {status & 255}.{status >> 8}")
        sock.settimeout(0)

    def run(self, warmup_s: float, seconds: float) -> dict[str, Any]:
        """Loads the server; returns the record that is printed.

        Raises:
            BadReply: Something else than the expected answer came.
            TimeoutError: Some answers never came.
        """
        start_ns = time.monotonic_ns()
        begin_ns = start_ns + int(warmup_s * 1e9)
        end_ns = begin_ns + int(seconds * 1e9)
        self._sent_ns[:] = start_ns
        for link in self._links:
            self._send(link, memoryview(self._out[link.number]).cast("B"))
        waiting = self._ids.size
        cpu_s: list[float] = []
        while waiting:
            now_ns = time.monotonic_ns()
            if len(cpu_s) < (now_ns >= begin_ns) + (now_ns > end_ns):
                cpu_s.append(_cpu_s())
            if now_ns > end_ns + DRAIN_S * 1e9:
                raise TimeoutError(f"{waiting} requests were never answered")
            waiting -= self._round(begin_ns, end_ns)
        cpu_s.append(_cpu_s())
        return self._record(seconds, cpu_s[1] - cpu_s[0])

    def _round(self, begin_ns: int, end_ns: int) -> int:
        """Serves what is ready; returns how many replies came that are followed by no other request."""
        ready = [(link, count) for link, mask in self._events() if (count := self._receive(link, mask))]
        now_ns = time.monotonic_ns()
        if not ready:
            return 0
        where = self._check(ready)
        self._answered += len(where[0])
        if begin_ns <= now_ns <= end_ns:
            self._latencies_ns.append(now_ns - self._sent_ns[where])
        if now_ns >= end_ns:
            self._ids[where] = 0
            return len(where[0])
        self._send_next(ready, where)
        return 0

    def _events(self) -> list[tuple[Link, int]]:
        return [(self._by_fd[fd], mask) for fd, mask in self._epoll.poll(0.02)]

    # ---------------------------------------------------------------- receiving

    def _receive(self, link: Link, mask: int) -> int:
        """Receives on a connection; returns how many whole replies are in its buffer."""
        if mask & select.EPOLLOUT and self._flush(link):
            self._epoll.modify(link.sock, select.EPOLLIN)
        if mask & ~select.EPOLLOUT:
            received = link.sock.recv_into(link.buffer[link.have :])
            if not received:
                raise BadReply("the server closed a connection")
            link.have += received
        if self._plan.kind == "http":
            return self._receive_http(link)
        if link.have >= HEADER_NBYTES and self._plan.kind == "frames":
            _check_first(link.buffer)
        return link.have // self._plan.reply_nbytes

    def _receive_http(self, link: Link) -> int:
        """Leaves only the body in the buffer once the reply is whole."""
        head, found, body = bytes(link.buffer[: link.have]).partition(b"\r\n\r\n")
        if not found or len(body) < self._plan.reply_nbytes:
            return 0
        if not head.startswith(b"HTTP/1.1 200"):
            raise BadReply(head.partition(b"\r")[0].decode(errors="replace"))
        link.buffer[: len(body)] = body
        link.have = len(body)
        return 1

    def _check(self, ready: Sequence[tuple[Link, int]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Takes whole replies out of the buffers and compares them; returns connection and place of each."""
        plan, nbytes = self._plan, self._plan.reply_nbytes
        block = np.concatenate(
            [np.frombuffer(link.buffer, np.uint8, count * nbytes) for link, count in ready]
        )
        replies = block.reshape(-1, nbytes)
        for link, count in ready:
            left = link.have - count * nbytes
            link.buffer[:left] = link.buffer[count * nbytes : link.have]
            link.have = left
        links = np.repeat([link.number for link, _ in ready], [count for _, count in ready])
        places = np.zeros_like(links)
        if plan.kind == "frames":
            heads = replies[:, :HEADER_NBYTES].copy().view(HEADER_DTYPE)[:, 0]
            if (heads["w0"] != W0_RESULT).any() or (heads["body"] != nbytes - HEADER_NBYTES).any():
                raise BadReply("a reply that is not the expected RESULT")
            places = ((heads["rid"] - np.uint64(1)) % np.uint64(self._outstanding)).astype(np.intp)
            again = np.bincount(links * self._outstanding + places).max() > 1
            if again or (self._ids[links, places] != heads["rid"]).any():
                raise BadReply("a reply whose id is not in flight on its connection")
            replies = replies[:, HEADER_NBYTES:]
        if plan.expected.shape[1]:
            self._compare(replies, plan.expected[self._which[links, places]])
        return links, places

    def _compare(self, payloads: npt.NDArray[np.uint8], want: Floats) -> None:
        got = np.ascontiguousarray(payloads[:, : want.shape[1] * 4]).view(np.float32)
        if not np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
            raise BadReply(f"values differ by up to {np.abs(got - want).max():g}")

    # ---------------------------------------------------------------- sending

    def _send_next(
        self,
        ready: Sequence[tuple[Link, int]],
        where: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
    ) -> None:
        self._ids[where] += np.uint64(self._ids.size)
        if self._plan.kind == "frames":
            self._out_ids[where[0] * self._outstanding + where[1]] = self._ids[where]
        first = 0
        # Read again: what checking took is the client's own time, not the server's.
        self._sent_ns[where] = time.monotonic_ns()
        for link, count in ready:
            places = where[1][first : first + count]
            first += count
            # A copy is made only of some of several requests; a single large one is sent from where it lies.
            out = self._out[link.number]
            self._send(link, memoryview(out if count == self._outstanding else out[places]).cast("B"))

    def _send(self, link: Link, data: memoryview) -> None:
        link.unsent.append(data)
        if len(link.unsent) == 1 and not self._flush(link):
            self._epoll.modify(link.sock, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, link: Link) -> bool:
        """Sends what the kernel takes; whether that was all."""
        while link.unsent:
            try:
                sent = link.sock.send(link.unsent[0])
            except BlockingIOError:
                return False
            link.unsent[0] = link.unsent[0][sent:]
            if not link.unsent[0]:
                link.unsent.pop(0)
        return True

    # ---------------------------------------------------------------- the end

    def _record(self, seconds: float, cpu_s: float) -> dict[str, Any]:
        latencies_us = np.concatenate([*self._latencies_ns, np.zeros(0, np.int64)]) / 1000
        quantiles = np.quantile(latencies_us, [0.5, 0.9, 0.99, 1]) if len(latencies_us) else np.zeros(4)
        names = ("p50_us", "p90_us", "p99_us", "max_us")
        return {
            "answers": len(latencies_us),
            "seconds": seconds,
            "answers_all": self._answered,
            "cpu_s": round(cpu_s, 6),
            **{name: round(float(value), 2) for name, value in zip(names, quantiles, strict=True)},
        }


def _check_first(buffer: memoryview) -> None:
    w0, _, rid, status = HEADER.unpack_from(buffer)[:4]
    if w0 == W0_ERROR:
        raise BadReply(f"request {rid}: status {status & 255}.{status >> 8}")


def _receive_exactly(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = sock.recv(nbytes - len(data))
        if not more:
            raise BadReply("the server closed a connection after its preamble")
        data += more
    return data


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(argv: list[str] | None = None) -> int:
    """Prints one line of JSON; 0 if every answer was right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.bench.load", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--outstanding", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warmup", type=float, default=0.2)
    parser.add_argument("--plan", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        load = Load(Plan.read(args.plan), args.connections, args.outstanding)
        with contextlib.closing(load):
            load.connect(args.port)
            record = load.run(args.warmup, args.seconds)
    except (BadReply, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
