"""Where the record of a server's traffic is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve.engine import Lane

log = structlog.get_logger(__name__)


def prepare_records(directory: str) -> None:
    """Makes sure, before anything is served, that records can be written; nothing to do for an empty name.

    Raises:
        OSError: they cannot.
    """
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)


def save_records(lanes: Sequence[Lane], directory: str) -> None:
    """Writes what was recorded of each model, as `NAME-VERSION.npz`. A full disk is logged, and ends nothing."""
    for lane in lanes:
        record = lane.witness.record() if lane.witness is not None else None
        if record is None:
            continue
        path = Path(directory, f"{lane.config.name}-{lane.config.version}.npz")
        try:
            record.save(path)
        except OSError as error:
            log.error("traffic_not_recorded", path=str(path), reason=error.strerror)  # noqa: TRY400  for the operator
        else:
            log.info(
                "traffic_recorded", path=str(path), requests=len(record.arrivals), dropped=record.dropped
            )
