"""What the server says of itself: structured logs, recorded traffic."""

from __future__ import annotations

from ._logging import configure_logging
from ._traffic import ARRIVAL, Trace, TraceError, TrafficRecorder

__all__ = ["ARRIVAL", "Trace", "TraceError", "TrafficRecorder", "configure_logging"]
