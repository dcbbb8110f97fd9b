"""Costs: lines through measurements, and what is decided by them."""

import pytest

from trioserve.execution._costs import GATHER_RANGE_NS, Costs, call_cost_ns, choose_depth


@pytest.mark.parametrize(
    ("service_ns", "cost"),
    [
        ({}, float("inf")),
        ({1: 500}, 500),
        ({1: 110, 32: 420}, 100),
        ({1: 110, 8: 999, 32: 420}, 100),
        ({2: 100, 4: 300}, 0),
        ({16: 100, 256: 80}, pytest.approx(101.33, abs=0.01)),
    ],
)
def test_a_call_costs_the_intercept(service_ns: dict[int, int], cost: float) -> None:
    assert call_cost_ns(service_ns) == cost


def test_cheap_calls_are_split_and_dear_ones_gathered() -> None:
    assert Costs(call_ns=float("inf"), copy_ns_per_byte=0).prefers_gather(2, 10**9)
    assert Costs(call_ns=1_000_000, copy_ns_per_byte=0.1).prefers_gather(4, 100_000)
    assert not Costs(call_ns=1_000, copy_ns_per_byte=0.1).prefers_gather(2, 100_000)
    assert not Costs(call_ns=1_000_000, copy_ns_per_byte=0.1).prefers_gather(2, 100_000_000)


def test_the_fixed_price_of_a_range_counts() -> None:
    costs = Costs(call_ns=2 * GATHER_RANGE_NS, copy_ns_per_byte=0)
    assert costs.prefers_gather(2, 100)
    assert not costs._replace(call_ns=2 * GATHER_RANGE_NS - 1).prefers_gather(2, 100)


@pytest.mark.parametrize(
    ("hop_ns", "service_ns", "depth"),
    [
        (50, 0, 2),
        (50, 500, 2),
        (51, 500, 2),
        (48_000, 94_000, 2),
        (100, 100, 2),
        (101, 100, 3),
        (10**9, 1, 3),
        (0, 100, 2),
    ],
)
def test_depth_hides_a_hop_that_weighs(hop_ns: int, service_ns: int, depth: int) -> None:
    assert choose_depth(hop_ns, service_ns) == depth
