"""The phases of a request as a waterfall in text."""

from __future__ import annotations

from typing import NamedTuple

from trioserve_protocol import CutReason, Timing

BAR_COLUMNS = 40

_PHASES = (
    ("parsed_ns", "parse and admit"),
    ("tokenized_ns", "tokenize"),
    ("ready_ns", "wait for payload"),
    ("batched_ns", "wait in queue"),
    ("input_copied_ns", "hand over"),
    ("run_ns", "run"),
    ("output_copied_ns", "copy out"),
    ("finished_ns", "hand back"),
    ("sent_ns", "reply"),
)
"""The timestamp that ends each phase, in order, and what the phase is called."""


class Phase(NamedTuple):
    """One phase of a request."""

    name: str
    start_ns: int
    """Since the request was received."""
    end_ns: int


def phases(timing: Timing) -> list[Phase]:
    """Returns the phases that took place.

    A phase starts where the latest one before it ended. Several are stamped once for a whole turn of the server,
    so one may seem to end before it starts: then it took no time of its own.
    """
    found: list[Phase] = []
    reached_ns = timing.received_ns
    for field, name in _PHASES:
        end_ns = getattr(timing, field)
        if not end_ns:
            continue
        start_ns, reached_ns = reached_ns, max(reached_ns, end_ns)
        found.append(Phase(name, start_ns - timing.received_ns, reached_ns - timing.received_ns))
    return found


def waterfall(timing: Timing, *, round_trip_us: int, server_us: int) -> str:
    """Draws the phases.

    Args:
        timing: What the reply said.
        round_trip_us: From sending the request to its result, as the client saw it.
        server_us: Time in the server, as the reply said.

    Returns:
        Lines without a final line break.
    """
    drawn = phases(timing)
    total_ns = max((phase.end_ns for phase in drawn), default=0) or 1
    width = max(len(name) for _, name in _PHASES)
    way_us = max(round_trip_us - server_us, 0)
    lines = [f"round trip {round_trip_us} µs: {way_us} µs on the way, {server_us} µs in the server"]
    for phase in drawn:
        start = phase.start_ns * BAR_COLUMNS // total_ns
        end = max(-(-phase.end_ns * BAR_COLUMNS // total_ns), start + 1)
        bar = " " * start + ("█" * (end - start) if phase.end_ns > phase.start_ns else "·")
        took_us = (phase.end_ns - phase.start_ns) / 1000
        lines.append(f"  {phase.name:<{width}}  {took_us:>9.1f} µs  {bar}".rstrip())
    lines.append(_batch_line(timing))
    return "\n".join(lines)


def _batch_line(timing: Timing) -> str:
    reasons = {reason.value: reason.name.lower().replace("_", " ") for reason in CutReason}
    reason = reasons.get(timing.cut_reason, f"reason {timing.cut_reason}")
    rows = f"{timing.batch_rows} row{'' if timing.batch_rows == 1 else 's'}"
    line = f"batch {timing.batch_id}: {rows}, padding {timing.padding}, cut: {reason}"
    if timing.predicted_finish_ns and timing.finished_ns:
        late_us = (timing.finished_ns - timing.predicted_finish_ns) / 1000
        line += f", {abs(late_us):.1f} µs {'later' if late_us > 0 else 'earlier'} than predicted"
    return line
