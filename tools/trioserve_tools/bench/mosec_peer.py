"""Mosec serving a workload: `python mosec_peer.py --port P`, in an environment that has `mosec` and numpy.

The workload is named by the environment variable TRIOSERVE_BENCH_WORK. One worker process, batches and waiting time
as trioserve has them.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import numpy as np

from trioserve_tools.bench._maths import WORKS, Floats

try:
    from mosec import Server, Worker
except ImportError:  # the documentation and the type checker read this file without it
    Server = Any
    Worker = object

WORK = WORKS[os.environ.get("TRIOSERVE_BENCH_WORK", "w1")]
WINDOW_MS = 2
PR_SET_PDEATHSIG = 1


class Peer(Worker):  # type: ignore[misc]  # without stubs
    """One batch at a time, raw f32 in and out."""

    req_mime_type = resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.function = WORK.function()

    def deserialize(self, data: bytes) -> Floats:
        """A row."""
        return np.frombuffer(data, np.float32).reshape(WORK.input_dims)

    def forward(self, rows: list[Floats]) -> list[Floats]:
        """A batch."""
        return list(self.function(np.stack(rows)))

    def serialize(self, row: Floats) -> bytes:
        """A reply's body."""
        return row.tobytes()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # ends with whoever started it
    server = Server()
    server.append_worker(Peer, num=1, max_batch_size=WORK.max_rows, max_wait_time=WINDOW_MS)
    server.run()
