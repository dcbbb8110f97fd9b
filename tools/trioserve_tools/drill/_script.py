r"""What the paced client (`paced.c`) is told to send, and what it writes down.

A script is one file, all numbers little-endian:

    offset  field
    0       8 bytes, b"TSPACE1\n"
    8       u32 connections, u32 templates, u32 requests (at most), u32 closed (0 or 1), u32 outstanding, u32 drain_ms
    32      u64 think_ns, u64 run_ns
    48      u32[connections] length of each preamble; the preambles
            u32[templates] end of each frame, u32[templates] end of each expected answer; the frames; the answers
            open only: u64[requests] planned time since the start in ns, ascending; u32[requests] connection;
            u32[requests] template

A record has a column each: i64 planned, sent and answered (monotonic ns; 0 = never), i32 status (-1 = unanswered),
u32 microseconds of the reply (RESULT: in the server; ERROR: retry_after), u32 connection, u32 template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trioserve_protocol import ErrorCode

from ._ledger import UNANSWERED

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_HEAD: Final = Struct("<8s6I2Q")
_MAGIC: Final = b"TSPACE1\n"
DRAIN_S: Final = 20.0
"""Longest that the client waits for answers when all is sent."""

REFUSALS: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.RESOURCE_EXHAUSTED,
        ErrorCode.SHED,
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.CREDIT_EXCEEDED,
        ErrorCode.DEADLINE_INFEASIBLE,
    )
)
"""What a request that was not admitted is answered with."""


@dataclass(frozen=True, slots=True)
class Template:
    """A request, but for its id."""

    frame: bytes
    """INFER, with its class, and with its whole deadline."""

    expected: bytes = b""
    """How the payload of its answer begins."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Planned times of an open run, and what is sent where."""

    times_ns: Ints
    """Since the start, ascending."""

    connections: npt.NDArray[np.uint32]
    templates: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed run."""

    seconds: float
    outstanding: int = 1
    """Requests that are unanswered on each connection."""

    think_s: float = 0.0
    """From an answer to the next request."""

    most: int = 2_000_000
    """Requests there can be."""


@dataclass(frozen=True, slots=True)
class Script:
    """All of it."""

    preambles: Sequence[bytes]
    """Of each connection: frames whose last one is a BIND."""

    templates: Sequence[Template]
    plan: Schedule | Loop

    def write(self, path: Path) -> None:
        """Writes the file."""
        plan = self.plan
        closed = isinstance(plan, Loop)
        requests = plan.most if isinstance(plan, Loop) else len(plan.times_ns)
        outstanding, think_s, seconds = (
            (plan.outstanding, plan.think_s, plan.seconds) if isinstance(plan, Loop) else (0, 0.0, 0.0)
        )
        counts = (len(self.preambles), len(self.templates), requests, int(closed), outstanding)
        times = (int(DRAIN_S * 1000), int(think_s * 1e9), int(seconds * 1e9))
        parts = [
            _HEAD.pack(_MAGIC, *counts, *times),
            _u32(list(map(len, self.preambles))),
            *self.preambles,
            _ends([one.frame for one in self.templates]),
            _ends([one.expected for one in self.templates]),
            *(one.frame for one in self.templates),
            *(one.expected for one in self.templates),
        ]
        if isinstance(plan, Schedule):
            parts += [plan.times_ns.astype("<u8").tobytes(), _u32(plan.connections), _u32(plan.templates)]
        path.write_bytes(b"".join(parts))


def _u32(values: Sequence[int] | npt.NDArray[np.uint32]) -> bytes:
    return np.asarray(values, "<u4").tobytes()


def _ends(parts: Sequence[bytes]) -> bytes:
    return np.cumsum(list(map(len, parts))).astype("<u4").tobytes()


@dataclass(frozen=True, slots=True)
class Record:
    """What became of the requests of a run, a column for each fact, in the order of their planned times."""

    planned_ns: Ints
    sent_ns: Ints
    """When the client had come to it; later than planned if it fell behind."""

    answered_ns: Ints
    status: npt.NDArray[np.int32]
    reply_us: npt.NDArray[np.uint32]
    connections: npt.NDArray[np.uint32]
    templates: npt.NDArray[np.uint32]
    wrong: int = 0
    """Answers with another payload than expected, or to ids of other connections."""

    repeated: int = 0
    """Terminal frames beyond the first of a request."""

    start_ns: int = 0
    """Monotonic time that an open run's plan counts from."""

    @classmethod
    def read(cls, path: Path, requests: int, *, wrong: int = 0, repeated: int = 0, start_ns: int = 0) -> Self:
        """Reads the file."""
        data, at = path.read_bytes(), 0

        def column(kind: str) -> npt.NDArray[Any]:
            nonlocal at
            values = np.frombuffer(data, kind, requests, at)
            at += values.nbytes
            return values

        times = (column("<i8"), column("<i8"), column("<i8"))
        facts = (column("<i4"), column("<u4"), column("<u4"), column("<u4"))
        return cls(*times, *facts, wrong=wrong, repeated=repeated, start_ns=start_ns)

    def __len__(self) -> int:
        return len(self.planned_ns)

    def only(self, which: Bools) -> Self:
        """Some of the requests; what is wrong with answers stays with the whole."""
        return type(self)(
            self.planned_ns[which],
            self.sent_ns[which],
            self.answered_ns[which],
            self.status[which],
            self.reply_us[which],
            self.connections[which],
            self.templates[which],
            start_ns=self.start_ns,
        )

    def between(self, first_s: float, last_s: float) -> Self:
        """The requests that were planned in a part of the run, in seconds since its start."""
        since_ns = self.planned_ns - self.start_ns
        return self.only((since_ns >= first_s * 1e9) & (since_ns < last_s * 1e9))

    @property
    def ok(self) -> Bools:
        """Which got a result."""
        return np.asarray(self.status == ErrorCode.OK)

    @property
    def refused(self) -> Bools:
        """Which were not admitted."""
        return np.isin(self.status, list(REFUSALS))

    @property
    def expired(self) -> Bools:
        """Which were admitted, and told later that their deadline had passed."""
        return np.asarray(
            (self.status & 0xFF == ErrorCode.DEADLINE_EXCEEDED)
            & (self.status != ErrorCode.DEADLINE_INFEASIBLE)
            & (self.status != UNANSWERED)
        )

    @property
    def unanswered(self) -> int:
        """Requests without a terminal frame."""
        return int((self.status == UNANSWERED).sum())

    @property
    def latency_ms(self) -> npt.NDArray[np.float64]:
        """From the planned time to the answer; infinite without one."""
        took_ms = (self.answered_ns - self.planned_ns) / 1e6
        return np.where(self.status == UNANSWERED, np.inf, took_ms)

    @property
    def behind_ms(self) -> npt.NDArray[np.float64]:
        """How much later than planned the client came to each request."""
        return np.asarray((self.sent_ns - self.planned_ns) / 1e6)

    def in_time(self, sla_ms: float) -> Bools:
        """Which got a result within so many milliseconds of their planned time."""
        return np.asarray(self.ok & (self.latency_ms <= sla_ms))


def quantile(values: npt.NDArray[np.float64], which: float) -> float:
    """A quantile; not a number if there are no values."""
    return float(np.quantile(values, which, method="higher")) if len(values) else float("nan")
