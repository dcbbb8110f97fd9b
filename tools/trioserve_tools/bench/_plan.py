r"""What a load client sends and expects, as one file that the clients in C and in Python both read.

    offset  field
    0       8 bytes, b"TSPLAN1\n"
    8       u32 kind: 0 frames of our protocol, 1 replies of a fixed size, 2 HTTP/1.1
    12      u32 requests: how many there are; they are sent in turn
    16      u32 request_nbytes: of each
    20      u32 preamble_nbytes: one frame, sent first on each connection; its answer is awaited; 0 = none
    24      u32 reply_nbytes: on the wire, of each; kind 2: of its body
    28      u32 expected_floats: of each, at the start of a reply's payload; 0 = replies are not compared
    32      preamble, then all requests, then all expected values (f32)

All numbers are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, Literal, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from trioserve_protocol import HEADER_NBYTES, bind_frame, infer_flags, pad8, request_columns

from ._maths import SEED, WORKS, Floats

Kind: TypeAlias = Literal["frames", "fixed", "http"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
HANDLE: Final = 1
TIMEOUT_US: Final = 2_000_000
REQUESTS: Final = 16
"""Different requests in a plan: enough that a server that mixes up its answers is caught, few enough for the caches."""

_HEAD: Final = Struct("<8s6I")
_MAGIC: Final = b"TSPLAN1\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests and the answers to them."""

    kind: Kind
    requests: npt.NDArray[np.uint8]
    """u8[requests, request_nbytes]"""

    reply_nbytes: int
    """See the file's layout."""

    expected: Floats
    """f32[requests, floats]; floats = 0 if replies are not to be compared."""

    preamble: bytes = b""
    """One frame, or nothing."""

    def write(self, path: Path) -> None:
        """Writes the file."""
        head = _HEAD.pack(
            _MAGIC,
            KINDS.index(self.kind),
            *self.requests.shape,
            len(self.preamble),
            self.reply_nbytes,
            self.expected.shape[1],
        )
        path.write_bytes(head + self.preamble + self.requests.tobytes() + self.expected.tobytes())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file.

        Raises:
            ValueError: It is something else.
        """
        data = path.read_bytes()
        magic, kind, count, request_nbytes, preamble_nbytes, reply_nbytes, floats = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError(f"{path}: not a plan")
        at = _HEAD.size + preamble_nbytes
        requests = np.frombuffer(data, np.uint8, count * request_nbytes, at)
        expected = np.frombuffer(data, np.float32, count * floats, at + requests.nbytes)
        return cls(
            KINDS[kind],
            requests.reshape(count, request_nbytes),
            reply_nbytes,
            expected.reshape(count, floats),
            data[_HEAD.size : at],
        )


def request_rows(work: str, seed: int = SEED) -> Floats:
    """Different inputs of a workload: f32[REQUESTS, *input_dims]."""
    rng = np.random.default_rng([seed, 1])
    return rng.standard_normal((REQUESTS, *WORKS[work].input_dims), np.float32)


def frames_plan(work: str, *, compared: bool = True) -> Plan:
    """INFER frames for a server that has the workload's model; the answers are known.

    Args:
        work: A key of `WORKS`.
        compared: False for a reflector, which knows no model: then only the ids of the replies are checked.
    """
    rows = request_rows(work)
    answers = WORKS[work].function()(rows).reshape(REQUESTS, -1)
    payload = rows.reshape(REQUESTS, -1).view(np.uint8)
    rids = np.arange(1, REQUESTS + 1, dtype=np.uint64)
    return Plan(
        "frames",
        request_columns(HANDLE, rids, TIMEOUT_US, infer_flags(), payload),
        HEADER_NBYTES + pad8(answers[0].nbytes),
        answers if compared else answers[:, :0],
        bind_frame(1, HANDLE, work),
    )


def fixed_plan(work: str) -> Plan:
    """As many bytes each way as the workload's frames have, for an echo."""
    frames = frames_plan(work)
    return Plan("fixed", frames.requests, frames.reply_nbytes, frames.expected[:, :0])


def http_plan(work: str, target: str) -> Plan:
    """The same inputs as the bodies of POST requests; the answers are known.

    Args:
        work: A key of `WORKS`.
        target: Path of the URL.
    """
    rows = request_rows(work)
    answers = WORKS[work].function()(rows).reshape(REQUESTS, -1)
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {rows[0].nbytes}\r\n\r\n".encode()
    heads = np.tile(np.frombuffer(head, np.uint8), (REQUESTS, 1))
    requests = np.hstack([heads, rows.reshape(REQUESTS, -1).view(np.uint8)])
    return Plan("http", requests, answers[0].nbytes, answers)
