"""Names of policies."""

from __future__ import annotations

import pytest

from trioserve.batching import POLICY_NAMES, Adaptive, Cork, FixedWindow, PreferredSizes, policy_named

SLA_NS = 50_000_000


def test_every_name_is_a_policy_of_its_own() -> None:
    assert len({type(policy_named(name, SLA_NS)) for name in POLICY_NAMES}) == len(POLICY_NAMES)
    cork = policy_named("bentoml", SLA_NS)
    assert isinstance(cork, Cork)
    assert cork.max_latency_ns == SLA_NS


@pytest.mark.parametrize(
    ("name", "window_ns"),
    [("fixed", 2_000_000), ("fixed:0.5", 500_000), ("adaptive:0", 0), ("triton:10", 10_000_000)],
)
def test_a_window_may_follow(name: str, window_ns: int) -> None:
    policy = policy_named(name, SLA_NS)
    found = policy.delay_ns if isinstance(policy, PreferredSizes) else None
    if isinstance(policy, Adaptive | FixedWindow):
        found = policy.window_ns
    assert found == window_ns


@pytest.mark.parametrize(
    "name", ["", "best", "fixed:", "fixed:x", "fixed:-1", "fixed:nan", "fixed:inf", "Greedy"]
)
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        policy_named(name, SLA_NS)
