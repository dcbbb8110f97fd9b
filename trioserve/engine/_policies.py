"""The cut policy that a model's configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.batching import Adaptive, FixedWindow, Policy, WorkConserving

if TYPE_CHECKING:
    from trioserve.config import ModelConfig


def policy_of(config: ModelConfig, lead_ns: int = 0) -> Policy:
    """The cut policy that a configuration names.

    Args:
        config: of the model.
        lead_ns: how long before the executor is free the next batch is sent.
    """
    window_ns = int(config.batching.window_ms * 1e6)
    if config.batching.policy == "fixed":
        return FixedWindow(window_ns)
    if config.batching.policy == "greedy":
        return WorkConserving(0, lead_ns)
    return Adaptive(window_ns, lead_ns)
