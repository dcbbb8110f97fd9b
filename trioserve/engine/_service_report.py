"""What statistics say of a service-time model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trioserve.batching import ServiceModel


def service_snapshot(service: ServiceModel, unit: str) -> dict[str, Any]:
    """A service-time model as JSON values, times in nanoseconds.

    Args:
        service: the model.
        unit: what its units are.

    Returns:
        `one_ns` and `full_ns` are the means of the smallest and of the largest batch, `fixed_ns` and `per_unit_ns` the
        straight line through both, `quantile_k` how many mean deviations above the mean a batch in a hundred runs, and
        `sizes` the knots between which all is interpolated.
    """
    state = service.to_state()
    sizes: list[int] = state["sizes"]
    smallest, largest = (sizes[0], max(service.max_units, sizes[0])) if sizes else (0, 0)
    return {
        "unit": unit,
        "one_units": smallest,
        "one_ns": round(service.mean_ns(smallest)),
        "full_units": largest,
        "full_ns": round(service.mean_ns(largest)),
        "fixed_ns": service.alpha_ns,
        "per_unit_ns": service.beta_ns,
        "quantile_k": service.k,
        "batches": service.batches,
        "sizes": [
            {"units": units, "mean_ns": mean_ns, "deviation_ns": deviation_ns}
            for units, mean_ns, deviation_ns in zip(
                sizes, state["mean_ns"], state["deviation_ns"], strict=True
            )
        ],
    }
