"""Clients that are slow on purpose, or silent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Final

import numpy as np
import trio

from trioserve_tools.idle_connections import affordable, idle_connections
from trioserve_tools.process_figures import descendants, rss_nbytes, wakeups, wakeups_since

from ._drill import QUICK_SOFT_S, QUICK_STALL_S, Field, Finding, at_most, exactly, none_of
from ._observe import fds_of, leaks, neighbour, undisturbed_p99_us
from ._until import until
from ._wire import Wire, infer, wire

KIB: Final = 1024
MIB: Final = 1024 * KIB
SETTLE_S: Final = 1.3
"""A server that has become idle is woken once more, by its watchdog, within a second."""


# ---------------------------------------------------------------- a header byte a second


SLICES: Final = 100
"""Into so many parts a round of bytes is cut, so that they arrive evenly."""


async def slowloris(field: Field) -> list[Finding]:
    """Connections that send a header byte by byte and never finish it."""
    count = affordable(field.count)
    stall_s, pace_s = (QUICK_STALL_S, 0.1) if field.quick else (5.0, 1.0)
    async with field.fresh_server(f"limits.header_stall_s={stall_s}") as server:
        fds = await fds_of(server)
        alone_us = await undisturbed_p99_us(server.port, stall_s)
        before = rss_nbytes(server.pid)
        async with neighbour(server.port) as victim:
            with contextlib.ExitStack() as stack:
                socks = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    for _ in range(count)
                ]
                each_kib = await _drip(socks, server.pid, before, stall_s, pace_s)
                closed = sum(map(_is_closed, socks))
        leaked = await leaks(server, fds)
    return [
        exactly("connections closed", closed, count),
        at_most("memory of each", each_kib, 32, "KiB"),
        field.timing("neighbour's p99 over its p99 alone", victim.felt.p99_us / alone_us, 1.2, "x"),
        none_of("neighbour's failures", victim.felt.failures),
        none_of("leaked", leaked),
        Finding("neighbour's p99 alone", alone_us / 1000, unit="ms"),
    ]


async def _drip(
    socks: Sequence[socket.socket], pid: int, before_nbytes: int, stall_s: float, pace_s: float
) -> float:
    """Sends a byte on each connection every `pace_s` until the stall limit is surely over.

    Returns:
        The memory of each connection, in KiB, at its highest.
    """
    highest = 0
    for byte in b"TS\x01\x10" + bytes(int(stall_s / pace_s) - 1):
        for first in range(SLICES):
            for sock in socks[first::SLICES]:
                with contextlib.suppress(OSError):
                    sock.send(bytes((byte,)), socket.MSG_DONTWAIT)
            await trio.sleep(pace_s / SLICES)
        highest = max(highest, rss_nbytes(pid) - before_nbytes)
    await trio.sleep(SETTLE_S)
    return highest / KIB / len(socks)


def _is_closed(sock: socket.socket) -> bool:
    """Whether the server has closed a connection; what it said before is read first."""
    try:
        while sock.recv(KIB, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# ---------------------------------------------------------------- never reading

REPLY_NBYTES: Final = 65_536
FULL_NBYTES: Final = 64 * MIB
"""What is asked for by a client that reads none of it: more than kernel and server may hold of it."""

ASKED_AT_ONCE: Final = 4
PATIENCE_S: Final = 10.0


async def deaf_reader(field: Field) -> list[Finding]:
    """A client that asks for more and more and never reads an answer; with others beside it that do."""
    soft_s = QUICK_SOFT_S if field.quick else 10.0
    async with field.fresh_server(f"limits.output_soft_s={soft_s}") as server:
        fds = await fds_of(server)
        alone_us = await undisturbed_p99_us(server.port, soft_s)
        async with neighbour(server.port) as victim:
            growth, slowest_s = 0, 0.0
            for _ in range(field.count):
                grown, seconds = await _never_read(server.port, server.pid, soft_s)
                growth, slowest_s = max(growth, grown), max(slowest_s, seconds)
        leaked = await leaks(server, fds)
    return [
        field.timing("closed after, slowest", slowest_s, soft_s + 1, "s"),
        at_most("memory growth", growth / MIB, 16, "MiB"),
        field.timing("neighbour's p99 over its p99 alone", victim.felt.p99_us / alone_us, 1.5, "x"),
        none_of("neighbour's failures", victim.felt.failures),
        none_of("leaked", leaked),
    ]


async def _never_read(port: int, pid: int, soft_s: float) -> tuple[int, float]:
    """Returns how much the server's memory grew, and the seconds until it closed the connection."""
    request = infer(1, np.zeros(2, np.float32).tobytes())
    async with wire(port, "wide") as connection:
        before, highest, started_s = rss_nbytes(pid), 0, trio.current_time()

        def closed() -> bool:
            nonlocal highest
            highest = max(highest, rss_nbytes(pid) - before)
            return _was_closed(connection)

        for number in range(FULL_NBYTES // REPLY_NBYTES):
            await _ask(connection, request, number)
            if closed():
                break
        await until(closed, within_s=soft_s + PATIENCE_S)
        return highest, trio.current_time() - started_s


async def _ask(connection: Wire, request: bytes, number: int) -> None:
    """Sends a few requests, and gives the server the time for them."""
    first = number * ASKED_AT_ONCE + 2
    heads = [(first + i).to_bytes(8, "little") for i in range(ASKED_AT_ONCE)]
    with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(0.1):
        await connection.send(b"".join(request[:8] + head + request[16:] for head in heads))
    await trio.sleep(0.002)


def _was_closed(connection: Wire) -> bool:
    """Whether the peer has reset or closed a connection of which nothing has been read."""
    sock = connection.stream.socket
    tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or tcp_info[0] != TCP_ESTABLISHED)


TCP_ESTABLISHED: Final = 1


# ---------------------------------------------------------------- doing nothing

IDLE_S: Final = 3.0


async def idle(field: Field) -> list[Finding]:
    """Connections that have bound a model and then do nothing."""
    count = affordable(field.count)
    async with field.fresh_server() as server:
        fds = await fds_of(server)
        before = rss_nbytes(server.pid)
        processes = [server.pid, *descendants(server.pid)]
        with idle_connections(server.port, count, "double"):
            await trio.sleep(SETTLE_S)
            each_kib = (rss_nbytes(server.pid) - before) / KIB / count
            earlier = wakeups(processes)
            await trio.sleep(IDLE_S / 3 if field.quick else IDLE_S)
            wakes = wakeups_since(earlier, wakeups(processes))
        leaked = await leaks(server, fds)
    return [
        exactly("idle connections", count, field.count),
        at_most("memory of each", each_kib, 32, "KiB"),
        none_of("wake-ups", wakes),
        none_of("leaked", leaked),
    ]
