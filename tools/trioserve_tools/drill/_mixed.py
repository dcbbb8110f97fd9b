"""Texts of very different lengths: how much of what is computed is padding."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from trioserve_protocol import ErrorCode, encode_bytes
from trioserve_tools.server_process import server_process

from ._drill import Field, Finding, none_of
from ._ledger import UNANSWERED
from ._models import minilm_repository, statistics_of
from ._paced import preambles, run_script, template
from ._script import Loop, Record, Script, quantile

SHORTEST: Final = 8
LONGEST: Final = 256
SPECIAL: Final = 2
"""Tokens that stand around every text."""

TEXTS: Final = 64
CLIENTS: Final = 64
WORD: Final = "word"
"""One token."""

MAX_TOKENS: Final = 512
"""Of a batch: two of the longest texts, so that few run alone."""

UNHURRIED_MS: Final = 30_000.0

NAMES: Final = {int(code): code.name for code in ErrorCode} | {UNANSWERED: "unanswered"}
"""Of what a request can come to."""


async def mixed_lengths(field: Field) -> list[Finding]:
    """MiniLM with padded batches, texts of 8 to 256 tokens, more of them than one batch takes."""
    lengths = _lengths(field.rng())
    requests = [
        template(encode_bytes([" ".join([WORD] * (count - SPECIAL)).encode()]), deadline_ms=UNHURRIED_MS)
        for count in lengths
    ]
    with tempfile.TemporaryDirectory(prefix="trioserve-minilm-") as folder:
        repository = await minilm_repository(
            field, "padded", UNHURRIED_MS, Path(folder), max_tokens=MAX_TOKENS
        )
        async with server_process(repository) as server:
            before = await statistics_of(server.port, "minilm")
            script = Script(preambles("minilm", CLIENTS), requests, Loop(field.seconds))
            record = await run_script(script, server.port)
            after = await statistics_of(server.port, "minilm")
            await server.end()
    tokens = int(np.array(lengths)[record.templates[record.ok]].sum())
    padding = after["padding"] - before["padding"]
    return [
        none_of("not answered, or wrong", int((~record.ok).sum()) + record.wrong + record.repeated),
        field.timing("padding of all that was computed", 100 * padding / max(1, padding + tokens), 15, "%"),
        Finding("rows a batch", len(record) / max(1, after["batches"] - before["batches"])),
        Finding("p99", quantile(record.latency_ms, 0.99), unit="ms"),
        Finding("texts", len(record)),
        *_others(record),
    ]


def _others(record: Record) -> list[Finding]:
    """How many were answered with what else than a result."""
    codes, counts = np.unique(record.status[~record.ok], return_counts=True)
    names = [NAMES.get(code, f"status {code}") for code in codes.tolist()]
    return [Finding(name, count) for name, count in zip(names, counts.tolist(), strict=True)]


def _lengths(rng: random.Random) -> list[int]:
    """Token counts, evenly spread in their logarithm: most texts are short, and most tokens are in long ones."""
    return [round(SHORTEST * (LONGEST / SHORTEST) ** rng.random()) for _ in range(TEXTS)]
