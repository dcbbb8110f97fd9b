from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trioserve_protocol import ErrorCode
from trioserve_tools.drill._overload import _of_statistics, _recovery_s
from trioserve_tools.drill._script import Record

MS = 1_000_000


def afterwards(late_until_s: float) -> Record:
    """A request a millisecond, for a second after a flood of two; too late until some time."""
    since_ms = np.arange(2000, 3000)
    latency_ms = np.where(since_ms < 2000 + late_until_s * 1000, 60, 10)
    blank = np.zeros(1000, np.uint32)
    return Record(
        since_ms * MS,
        since_ms * MS,
        (since_ms + latency_ms) * MS,
        np.full(1000, ErrorCode.OK, np.int32),
        blank,
        blank,
        blank,
    )


@pytest.mark.parametrize("late_until_s, recovery_s", [(0, 0), (0.25, 0.3), (1, 1)])
def test_recovery_ends_with_the_last_bad_window(late_until_s: float, recovery_s: float) -> None:
    assert _recovery_s(afterwards(late_until_s), 2, 1, 50) == pytest.approx(recovery_s)


def counted(**changes: Any) -> dict[str, Any]:
    scheduler = {"shed_that_left_room": changes.pop("left", 0)}
    return {
        "received": 100,
        "refused": 10,
        "rows": 80,
        "errors": {"SHED": 10},
        "scheduler": scheduler,
        **changes,
    }


def test_parts_are_of_what_grew() -> None:
    errors = {"SHED": 60, "DEADLINE_IN_QUEUE": 5, "DEADLINE_AFTER_EXECUTION": 2}
    after = counted(received=250, refused=60, rows=180, errors=errors, left=6)
    assert _of_statistics(counted(left=1), after) == (0.02, 0.05, 0.1)
    assert _of_statistics(counted(), counted()) == (0, 0, 0)
