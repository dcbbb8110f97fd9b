"""Those who are told of everything that is asked of a model: the record of its traffic, and its shadows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trioserve.batching import Shadow, policy_named
from trioserve.observability import TrafficRecord, TrafficRecorder
from trioserve_protocol import CLASS_MASK

from ._occupancy import ServiceByRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._lane import Lane


class Witness:
    """Sees what is offered to one model, admitted or not.

    Args:
        lane: the model.
        record_requests: the most requests that are recorded; 0 for no record.
    """

    def __init__(self, lane: Lane, record_requests: int) -> None:
        self._lane: Final = lane
        self._recorder: Final = TrafficRecorder(record_requests) if record_requests else None
        self._service: Final = ServiceByRows(lane.service)
        sla_ns = lane.default_deadline_ns
        self._shadows: Final = [
            Shadow(name, policy_named(name, sla_ns), self._service, lane.max_rows, sla_ns)
            for name in lane.config.batching.shadows
        ]

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants to know."""
        return self._recorder is not None or bool(self._shadows)

    def saw(
        self,
        sessions: int | NDArray[np.uint32],
        count: int,
        timeouts_us: int | NDArray[np.uint32],
        flags: int | NDArray[np.uint16],
        now_ns: int,
        *,
        rows: int = 1,
    ) -> None:
        """Some requests have come together.

        Args:
            sessions: index of the connection, or of each.
            count: how many.
            timeouts_us: as on the wire, one for all or of each.
            flags: as on the wire.
            now_ns: when.
            rows: of each.
        """
        default_ns = self._lane.default_deadline_ns
        timeouts_ns: int | NDArray[np.int64]
        if isinstance(timeouts_us, int):
            timeouts_ns = timeouts_us * 1000 or default_ns
        else:
            timeouts_ns = timeouts_us.astype(np.int64) * 1000
            timeouts_ns[timeouts_ns == 0] = default_ns
        if self._recorder is not None:
            klass = flags & CLASS_MASK
            classes = klass.astype(np.uint8) if isinstance(klass, np.ndarray) else klass
            self._recorder.offered(now_ns, count, timeouts_ns, rows=rows, sessions=sessions, klass=classes)
        self._service.model = self._lane.service
        self._service.units_per_row = self._lane.scheduler.units_per_row
        for shadow in self._shadows:
            if rows > 1:
                shadow.offered(
                    now_ns, rows, timeouts_ns if isinstance(timeouts_ns, int) else int(timeouts_ns[0])
                )
            else:
                shadow.offered(now_ns, count, timeouts_ns)

    def record(self) -> TrafficRecord | None:
        """What has been recorded, with what must be known of the model to replay it; None if nothing is."""
        if self._recorder is None:
            return None
        lane = self._lane
        service, scale = lane.scheduler.service, lane.scheduler.units_per_row
        sizes = sorted({min(1 << step, lane.max_rows) for step in range(lane.max_rows.bit_length() + 1)})
        about: dict[str, Any] = {
            "version": lane.config.version,
            "max_rows": lane.max_rows,
            "sla_ns": lane.default_deadline_ns,
        }
        if service.known:
            about["service"] = {
                "mean_ns": {str(size): service.mean_ns(size * scale) for size in sizes},
                "deviation_ns": {str(size): service.deviation_ns(size * scale) for size in sizes},
            }
        return self._recorder.record(lane.config.name, about)

    def snapshot(self, now_ns: int) -> list[dict[str, Any]]:
        """What the shadows have come to, as JSON values."""
        return [shadow.snapshot(now_ns) for shadow in self._shadows]
