"""Policies by the names that configurations and command lines have for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._adaptive import Adaptive
from ._policy import FixedWindow, WorkConserving
from ._rivals import AdditiveIncrease, Cork, JustInTime, PreferredSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._policy import Policy

WINDOW_MS: Final = 2.0
MAX_WINDOW_MS: Final = 1_000.0
"""Longest window of a name. What a server waits is bounded by 2 ms; a rival may be tried with more."""

_POLICIES: Final[dict[str, Callable[[int, int, int], Policy]]] = {
    "adaptive": lambda window_ns, _, lead_ns: Adaptive(window_ns, lead_ns),
    "greedy": lambda _, __, lead_ns: WorkConserving(0, lead_ns),
    "fixed": lambda window_ns, *_: FixedWindow(window_ns),
    "triton": lambda window_ns, *_: PreferredSizes(window_ns),
    "tensorflow": lambda *_: JustInTime(),
    "bentoml": lambda _, sla_ns, __: Cork(sla_ns),
    "clipper": lambda _, sla_ns, __: AdditiveIncrease(sla_ns),
}

POLICY_NAMES: Final = tuple(_POLICIES)
"""What may stand before the colon."""


def policy_named(name: str, sla_ns: int, lead_ns: int = 0) -> Policy:
    """The policy that a name stands for.

    Args:
        name: one of `POLICY_NAMES`; with a window in milliseconds behind a colon if it is not 2: `fixed:0.5`.
        sla_ns: what a request may take, for policies that adapt to it.
        lead_ns: how long before an executor is free its next batch is sent, for policies that know of that.

    Raises:
        ValueError: there is no such policy, or the window is none.
    """
    kind, colon, text = name.partition(":")
    make = _POLICIES.get(kind)
    if make is None:
        raise ValueError(f"policy: expected one of {', '.join(POLICY_NAMES)}, got {name!r}")
    try:
        window_ms = float(text) if colon else WINDOW_MS
    except ValueError:
        window_ms = -1.0
    if not 0 <= window_ms <= MAX_WINDOW_MS:
        raise ValueError(f"window of {kind}: expected 0 to {MAX_WINDOW_MS:g} milliseconds, got {text!r}")
    return make(int(window_ms * 1e6), sla_ns, lead_ns)
