"""Recorded traffic: what was asked of a model and when, without what was in it.

A record is enough to ask "what would another policy, or another machine, have done with this hour": when each request
came, how long it could wait, how large it was, how much it mattered and which client sent it. Payloads, names of
clients and their addresses are not in it, so it can be kept and shared.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION: Final = 1
"""Of the file's layout."""

CHUNK_REQUESTS: Final = 65_536
"""Requests that memory is taken for at a time: 1.6 MiB."""

ARRIVAL: Final = np.dtype(
    [
        ("at_ns", "<i8"),
        ("timeout_ns", "<i8"),
        ("rows", "<u4"),
        ("session", "<u4"),
        ("klass", "u1"),
    ]
)
"""One request: when its header came, in nanoseconds since the first; how long it could wait then; its rows; the number
of its connection, and its class as on the wire."""


class TrafficError(Exception):
    """A file is not a record of traffic. `str()` says why."""


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """What was asked of one model.

    Ownership: the columns belong to the record and are not written again.
    """

    model: str
    arrivals: NDArray[np.void]
    """`ARRIVAL`[requests], ascending in time."""

    about: dict[str, Any] = field(default_factory=dict)
    """What the server knew of the model: JSON values."""

    dropped: int = 0
    """Requests that came after the record was full."""

    def save(self, path: Path) -> None:
        """Writes the record; whoever looks sees all of it or what was there before.

        Raises:
            OSError: the file cannot be written.
        """
        head = {"version": VERSION, "model": self.model, "about": self.about, "dropped": self.dropped}
        encoded = np.frombuffer(json.dumps(head).encode(), np.uint8)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                np.savez_compressed(file, head=encoded, arrivals=self.arrivals)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    @classmethod
    def load(cls, path: Path) -> TrafficRecord:
        """Reads what `save` wrote. Nothing in a file is executed, whoever wrote it.

        Raises:
            OSError: the file cannot be read.
            TrafficError: it is no record, or one of a later version.
        """
        try:
            with np.load(path, allow_pickle=False) as members:
                head = json.loads(members["head"].tobytes())
                arrivals = members["arrivals"]
        except (ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise TrafficError(f"{path} is not a record of traffic") from error
        if not isinstance(head, dict) or head.get("version") != VERSION:
            raise TrafficError(f"{path}: expected a record of version {VERSION}")
        if arrivals.dtype != ARRIVAL or arrivals.ndim != 1 or (np.diff(arrivals["at_ns"]) < 0).any():
            raise TrafficError(f"{path}: expected arrivals in the order of their time")
        return cls(
            str(head.get("model", "")), arrivals, dict(head.get("about", {})), int(head.get("dropped", 0))
        )


class TrafficRecorder:
    """Keeps what is asked of one model, up to a bound; what comes later is only counted.

    Args:
        max_requests: the most requests that are kept, 25 bytes each.
    """

    def __init__(self, max_requests: int) -> None:
        self.max_requests: Final = max_requests
        self.requests = 0
        self.dropped = 0
        self._chunks: list[NDArray[np.void]] = []
        self._began_ns = 0

    def offered(
        self,
        now_ns: int,
        count: int,
        timeouts_ns: int | NDArray[np.int64],
        *,
        rows: int | NDArray[np.uint32] = 1,
        sessions: int | NDArray[np.uint32] = 0,
        klass: int | NDArray[np.uint8] = 0,
    ) -> None:
        """Notes a run of requests that came together.

        Args:
            now_ns: when.
            count: how many.
            timeouts_ns: how long each may take, or one for all; likewise the others.
            rows: of each.
            sessions: their connections.
            klass: how much they matter.
        """
        if not self.requests:
            self._began_ns = now_ns
        done = 0
        while done < count:
            start = self.requests % CHUNK_REQUESTS
            room = min(CHUNK_REQUESTS - start, self.max_requests - self.requests, count - done)
            if not room:
                self.dropped += count - done
                return
            if not start:
                self._chunks.append(np.zeros(CHUNK_REQUESTS, ARRIVAL))
            cells = self._chunks[-1][start : start + room]
            cells["at_ns"] = now_ns - self._began_ns
            columns = (("timeout_ns", timeouts_ns), ("rows", rows), ("session", sessions), ("klass", klass))
            for name, values in columns:
                cells[name] = values[done : done + room] if isinstance(values, np.ndarray) else values
            done += room
            self.requests += room

    def record(self, model: str, about: dict[str, Any]) -> TrafficRecord:
        """What has been kept so far, in a copy."""
        kept = np.concatenate([*self._chunks, np.zeros(0, ARRIVAL)])[: self.requests]
        return TrafficRecord(model, kept, about, self.dropped)
