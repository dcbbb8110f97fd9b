"""Names of policies."""

from __future__ import annotations

import pytest

from trioserve.batching import POLICY_NAMES, Adaptive, FixedWindow, WorkConserving, policy_named


def test_every_name_is_a_policy() -> None:
    kinds = {name: type(policy_named(name)) for name in POLICY_NAMES}
    assert kinds == {"adaptive": Adaptive, "greedy": WorkConserving, "fixed": FixedWindow}


@pytest.mark.parametrize(
    ("name", "window_ns"), [("fixed", 2_000_000), ("fixed:0.5", 500_000), ("adaptive:0", 0)]
)
def test_a_window_may_follow(name: str, window_ns: int) -> None:
    policy = policy_named(name)
    assert isinstance(policy, Adaptive | FixedWindow)
    assert policy.window_ns == window_ns


@pytest.mark.parametrize(
    "name", ["", "best", "fixed:", "fixed:x", "fixed:-1", "fixed:nan", "fixed:inf", "Greedy"]
)
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        policy_named(name)
