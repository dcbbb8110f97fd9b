"""Bytes that no client sends: lengths beyond every limit, other protocols, noise; and one bad row among good ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import trio

from trioserve_protocol import (
    HEADER,
    W0_INFER,
    W0_INFER_MANY,
    Connection,
    ErrorCode,
    FatalError,
    FrameType,
    Limits,
    Role,
    infer_flags,
)
from trioserve_tools.process_figures import rss_nbytes

from ._drill import Field, Finding, at_most, exactly, none_of
from ._observe import fds_of, leaks
from ._parser import in_parallel
from ._wire import HANDLE, MINUTE_US, infer, wire

WARM: Final = 50
"""Refusals before memory is looked at: the first ones fill pools that are used again."""

MAX_BODY: Final = Limits().max_frame_nbytes


async def oversize(field: Field) -> list[Finding]:
    """Headers that announce more than any limit admits."""
    server, rng = field.server, field.rng()
    fds = await fds_of(server)
    others, latencies_ms, rss = 0, [], 0
    for number in range(WARM + field.count):
        if number == WARM:
            rss = rss_nbytes(server.pid)
        body = rng.choice((MAX_BODY + 8, 0xFFFF_FFF8, rng.randrange(MAX_BODY + 8, 0xFFFF_FFF8) & ~7))
        word = rng.choice((W0_INFER, W0_INFER_MANY))
        header = HEADER.pack(word, body, 1, HANDLE, infer_flags(), MINUTE_US, 0, 1, 0)
        async with wire(server.port, "double") as connection:
            sent_ns = time.monotonic_ns()
            await connection.send(header)
            reply = await connection.receive()
            if number >= WARM:
                latencies_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
            refused = reply is not None and reply.kind == FrameType.ERROR
            code = reply.status if reply is not None else ErrorCode.OK
            closed = await connection.receive() is None
            others += not (refused and code == ErrorCode.FRAME_TOO_LARGE and closed)
    growth_nbytes = rss_nbytes(server.pid) - rss
    return [
        none_of("other outcomes than FRAME_TOO_LARGE and a closed connection", others),
        field.timing("refused within, p99", float(np.quantile(latencies_ms, 0.99)), 1, "ms"),
        at_most("memory growth", growth_nbytes / 1024, 64, "KiB"),
        none_of("leaked", await leaks(server, fds)),
        Finding("lengths", field.count),
    ]


# ---------------------------------------------------------------- other protocols and noise


def _http(rng: random.Random) -> bytes:
    method = rng.choice(("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"))
    body = rng.randbytes(rng.randrange(200))
    return f"{method} /v2/health HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _tls(rng: random.Random) -> bytes:
    hello = rng.randbytes(rng.randrange(40, 300))
    return bytes((0x16, 3, rng.randrange(4))) + len(hello).to_bytes(2, "big") + hello


def _other_version(rng: random.Random) -> bytes:
    return b"TS" + bytes((rng.choice((0, 2, 3, 255)),)) + rng.randbytes(61)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 400))


NOISES: Final[tuple[Callable[[random.Random], bytes], ...]] = (_http, _tls, _other_version, _noise)


def expected_answer(data: bytes) -> bytes:
    """What is answered to a stream before it is closed: the parser's own words, or nothing if it waits for more."""
    machine = Connection(Role.SERVER)
    events, _ = machine.receive(memoryview(data))
    return bytes(events[0].reply) if events and isinstance(events[0], FatalError) else b""


async def garbage(field: Field) -> list[Finding]:
    """Streams of other protocols, each followed by the end of the stream."""
    server, rng = field.server, field.rng()
    fds = await fds_of(server)
    streams = [NOISES[number % len(NOISES)](rng) for number in range(field.count)]
    others = 0

    async def try_one(data: bytes) -> None:
        nonlocal others
        async with wire(server.port) as connection:
            try:
                await connection.send(data)
                await connection.finish_sending()
            except (trio.BrokenResourceError, OSError):
                pass  # closed already, with its answer on the way
            others += await connection.rest() != expected_answer(data)

    await in_parallel(streams, try_one)
    return [
        none_of("other outcomes than one hint or ERROR and a closed connection", others),
        none_of("leaked", await leaks(server, fds)),
        Finding("streams", len(streams)),
    ]


# ---------------------------------------------------------------- one bad row in a batch

BATCH: Final = 32


async def poisoned_row(field: Field) -> list[Finding]:
    """Batches of 32 requests, one of which makes the model raise."""
    server, rng = field.server, field.rng()
    fds = await fds_of(server)
    wrong = errors = untyped = unanswered = 0
    async with wire(server.port, "picky") as connection:
        before = await _full_batches(server.port)
        for _ in range(field.count):
            poisoned = rng.randrange(BATCH)
            rows = np.arange(BATCH * 8, dtype=np.float32).reshape(BATCH, 8)
            rows[poisoned, rng.randrange(8)] = np.nan
            await connection.send(b"".join(infer(rid + 1, row.tobytes()) for rid, row in enumerate(rows)))
            left = set(range(BATCH))
            while left and (reply := await connection.receive()) is not None:
                index = reply.rid - 1
                left.discard(index)
                if index == poisoned:
                    errors += reply.kind == FrameType.ERROR
                    untyped += reply.status != ErrorCode.MODEL_RAISED
                else:
                    wrong += reply.payload != (rows[index] + np.float32(1)).tobytes()
            unanswered += len(left)
        full = await _full_batches(server.port) - before
    return [
        none_of("wrong answers of other rows", wrong),
        exactly("errors of the bad row", errors, field.count),
        none_of("of another type than MODEL_RAISED", untyped),
        none_of("unanswered", unanswered),
        none_of("leaked", await leaks(server, fds)),
        Finding(f"batches of {BATCH}", full),
    ]


async def _full_batches(port: int) -> int:
    async with wire(port) as asking:
        statistics = await asking.admin("statistics")
    (model,) = (model for model in statistics["models"] if model["model"] == "picky")
    return int(model["batch_sizes"].get(str(BATCH), 0))
