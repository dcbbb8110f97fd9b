"""What the server says of itself: structured logs, recorded traffic."""

from __future__ import annotations

from ._logging import configure_logging
from ._processes import resident_nbytes
from ._traffic import ARRIVAL, TrafficError, TrafficRecord, TrafficRecorder

__all__ = [
    "ARRIVAL",
    "TrafficRecord",
    "TrafficError",
    "TrafficRecorder",
    "configure_logging",
    "resident_nbytes",
]
