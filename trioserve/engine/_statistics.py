"""What a model shows of itself: its counters, its gauges, and what its scheduler has learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode

from ._text import TextLane

if TYPE_CHECKING:
    from trioserve.batching import ServiceModel

    from ._lane import Lane


def lane_statistics(lane: Lane, now_ns: int) -> dict[str, Any]:
    """Everything that is counted of one model, as JSON values."""
    slots = lane.slots
    return {
        "model": lane.config.name,
        "version": lane.config.version,
        **lane.stats.snapshot(),
        "in_flight": len(slots.live_requests()),
        "queued_rows": lane.queue.rows,
        "announced_rows": lane.announced_rows,
        "slots": {"total": slots.total, "leased": slots.leased, "free_blocks": slots.free_blocks},
        "permits": {
            "rows": lane.gate.rows.taken,
            "rows_limit": lane.gate.rows.limit,
            "rows_high_water": lane.gate.rows.high_water,
        },
        "quarantine": lane.door.quarantine.snapshot(),
        "text_quarantine": lane.text_quarantine.snapshot() if isinstance(lane, TextLane) else None,
        "slab_nbytes": lane.slab.layout.total_nbytes,
        "service": service_statistics(lane.service, lane.unit),
        "scheduler": _scheduler(lane, now_ns),
        "shadows": lane.witness.snapshot(now_ns) if lane.witness else [],
    }


def service_statistics(service: ServiceModel, unit: str) -> dict[str, Any]:
    """How long batches run: mean, mean deviation and the quantile that one in a hundred exceeds, at each known size.

    Args:
        service: the service-time model.
        unit: what its units are.
    """
    sizes: list[int] = service.to_state()["sizes"]
    smallest, largest = (sizes[0], max(service.max_units, sizes[0])) if sizes else (0, 0)
    return {
        "unit": unit,
        "one_units": smallest,
        "one_ns": round(service.mean_ns(smallest)),
        "full_units": largest,
        "full_ns": round(service.mean_ns(largest)),
        "fixed_ns": service.alpha_ns,
        "per_unit_ns": service.beta_ns,
        "way_ns": round(service.way_ns),
        "quantile_k": service.k,
        "batches": service.batches,
        "sizes": [
            {
                "units": units,
                "mean_ns": round(service.mean_ns(units)),
                "deviation_ns": round(service.deviation_ns(units)),
                "quantile_ns": round(service.quantile_ns(units)),
            }
            for units in sizes
        ],
    }


def _scheduler(lane: Lane, now_ns: int) -> dict[str, Any]:
    """What the scheduler goes by."""
    scheduler, door = lane.scheduler, lane.door
    known = lane.service.known
    return {
        "policy": lane.config.batching.policy,
        "units_per_row": scheduler.units_per_row,
        "full_rows": scheduler.full_rows,
        "offered_per_s": 1e9 * scheduler.offered.rates(0, now_ns)[0],
        "capacity_per_s": 1e9 * scheduler.rule.capacity if known else None,
        "cap_units": scheduler.rule.cap_units if known else None,
        "calm_rows": None if lane.calm_rows == NEVER_NS else lane.calm_rows,
        "admission_margin_z": scheduler.margins.z,
        "cut_margin_kg": scheduler.margins.kg,
        "shed": lane.stats.errors.get(ErrorCode.SHED, 0),
        "shed_that_left_room": door.room.left,
        "class_ranks": list(door.classes.ranks),
        "class_shares": list(door.classes.shares),
    }
