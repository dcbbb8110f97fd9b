"""Questions sent to a server, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import trio

from trioserve.client import Client
from trioserve_tools.demo._report import Load


async def measure(client: Client, model: str, texts: Sequence[str], *, in_flight: int, name: str) -> Load:
    """Sends every text as a request of its own, so many at a time.

    Args:
        client: Connected.
        model: What embeds them.
        texts: What to send.
        in_flight: Requests that are unanswered at any time.
        name: What to call this in the table.
    """
    latencies_ns = np.zeros(len(texts), np.int64)
    remaining = iter(enumerate(texts))
    began_ns = time.perf_counter_ns()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(_ask_all, client, model, remaining, latencies_ns)
    return Load(name, latencies_ns, time.perf_counter_ns() - began_ns)


async def _ask_all(
    client: Client,
    model: str,
    remaining: Iterator[tuple[int, str]],
    latencies_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Asks one question after the other for as long as there are any that nobody else has taken."""
    for index, text in remaining:
        began_ns = time.perf_counter_ns()
        await client.infer(model, [text])
        latencies_ns[index] = time.perf_counter_ns() - began_ns
