"""What is known of a stage's worker beyond what it has to do: for operators."""

from __future__ import annotations

from typing import Any, Literal

from trioserve.observability import resident_nbytes
from trioserve.request import NEVER_NS

State = Literal["starting", "ready", "restarting", "failed"]
"""`starting`: has not served yet. `restarting`: is lost, and replaced soon. `failed`: dies again and again; its models
are closed, and it is tried now and then."""


class WorkerHealth:
    """The state of one worker and its history.

    Args:
        now_ns: when it was asked for.
    """

    def __init__(self, now_ns: int) -> None:
        self.kind = ""
        """`executor` or `tokenizer`."""
        self.state: State = "starting"
        self.since_ns = now_ns
        """Since when it is in this state."""
        self.pid = 0
        """Of the process that serves; 0 while there is none."""
        self.spare_pid = 0
        """Of the process that would take over; 0 while there is none."""
        self.deaths = 0
        """Workers that were lost, and starts that failed after the first."""
        self.last_death = ""
        """How the last of them ended, in words."""
        self.retry_ns = NEVER_NS
        """When the next start is tried, while there is no worker."""

    def turn(self, state: State, now_ns: int) -> None:
        """The state changes."""
        if state != self.state:
            self.state, self.since_ns = state, now_ns
        if state != "ready":
            self.pid = 0

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """What is known, as JSON values."""
        waits = self.state in {"restarting", "failed"} and self.retry_ns != NEVER_NS
        return {
            "kind": self.kind,
            "state": self.state,
            "for_s": (now_ns - self.since_ns) / 1e9,
            "pid": self.pid,
            "rss_nbytes": resident_nbytes(self.pid),
            "spare_pid": self.spare_pid,
            "spare_rss_nbytes": resident_nbytes(self.spare_pid),
            "deaths": self.deaths,
            "last_death": self.last_death,
            "retry_in_s": max(0, self.retry_ns - now_ns) / 1e9 if waits else None,
        }
