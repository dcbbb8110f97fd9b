"""Where the record of a server's traffic is kept."""

from __future__ import annotations

import contextlib
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trioserve.engine import Lane
    from trioserve.observability import TrafficRecord

log = structlog.get_logger(__name__)


def prepare_records(directory: str) -> None:
    """Makes sure, before anything is served, that records can be written; nothing to do for an empty name.

    Raises:
        OSError: they cannot; its text names the key and the directory.
    """
    if not directory:
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"record: expected a directory, got {directory!r}: {error.strerror}") from error


def save_records(lanes: Sequence[Lane], directory: str) -> None:
    """Writes what was recorded of each model, beside what earlier starts have written.

    A full disk is logged, and ends nothing. Nothing is written of a model that nobody has asked, if there is a record
    of it already.
    """
    for lane in lanes:
        record = lane.witness.record() if lane.witness is not None else None
        if record is None:
            continue
        name = f"{lane.config.name}-{lane.config.version}"
        path = Path(directory, f"{name}.npz")
        try:
            if not len(record.arrivals) and path.exists():
                continue
            path = _claimed(directory, name)
            _save(record, path)
        except OSError as error:
            log.error("traffic_not_recorded", path=str(path), reason=error.strerror)  # noqa: TRY400  for the operator
        else:
            log.info(
                "traffic_recorded", path=str(path), requests=len(record.arrivals), dropped=record.dropped
            )


def _claimed(directory: str, name: str) -> Path:
    """Makes an empty file of the first free name: `NAME.npz`, `NAME-2.npz`, and so on."""
    for number in count(1):
        path = Path(directory, f"{name}-{number}.npz" if number > 1 else f"{name}.npz")
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
            return path
    raise AssertionError("numbers do not end")


def _save(record: TrafficRecord, path: Path) -> None:
    """Writes a record over the empty file that was made for it, which goes if that fails."""
    try:
        record.save(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
