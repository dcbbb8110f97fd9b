"""Names of policies."""

from __future__ import annotations

from typing import Literal

import pytest

from trioserve.batching import (
    POLICY_NAMES,
    Adaptive,
    Cork,
    FixedWindow,
    PreferredSizes,
    WorkConserving,
    policy_named,
)
from trioserve.config import BatchingConfig

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
    ("kind", "expected"), [("adaptive", Adaptive), ("greedy", WorkConserving), ("fixed", FixedWindow)]
)
def test_what_a_configuration_names_is_a_policy(
    kind: Literal["adaptive", "greedy", "fixed"], expected: type[Adaptive | WorkConserving | FixedWindow]
) -> None:
    policy = policy_named(BatchingConfig(policy=kind, window_ms=0.1).named_policy, SLA_NS)
    assert isinstance(policy, expected)
    assert policy.window_ns == (0 if kind == "greedy" else 100_000)


@pytest.mark.parametrize("name", ["adaptive", "greedy"])
def test_a_batch_may_be_sent_a_little_before_the_executor_is_free(name: str) -> None:
    policy = policy_named(name, SLA_NS, 20_000)
    assert isinstance(policy, Adaptive | WorkConserving)
    assert policy.lead_ns == 20_000


@pytest.mark.parametrize(
    "name", ["", "best", "fixed:", "fixed:x", "fixed:-1", "fixed:nan", "fixed:inf", "Greedy"]
)
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        policy_named(name, SLA_NS)
