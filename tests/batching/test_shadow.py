"""Shadows: exact on traffic that can be worked out by hand, bounded, and as percentiles should be."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import POLICY_NAMES, FixedWindow, ServiceModel, Shadow, WorkConserving, policy_named
from trioserve.batching._shadow import MAX_WAITING_BATCHES, Latencies

MS = 1_000_000


def shadow(window_ms: float | None = None, max_rows: int = 4) -> Shadow:
    """S = 4 ms + 1 ms x rows; greedy without a window."""
    service = ServiceModel({1: 5 * MS, 4: 8 * MS})
    policy = WorkConserving(0) if window_ms is None else FixedWindow(int(window_ms * MS))
    return Shadow("shadow", policy, service, max_rows, 50 * MS)


def test_greedy_takes_what_is_there() -> None:
    greedy = shadow()
    greedy.offered(0, 1, 100 * MS)  # runs alone until 5
    greedy.offered(1 * MS, 3, 100 * MS)  # run together from 5 to 12
    result = greedy.snapshot(20 * MS)
    assert (result["answers"], result["batches"], result["late"]) == (4, 2, 0)
    assert result["mean_us"] == pytest.approx((5 + 3 * 11) / 4 * 1e3)


def test_a_fixed_window_waits() -> None:
    fixed = shadow(2)
    fixed.offered(0, 1, 6 * MS)  # waits until 2, then runs with the next one until 8: late
    fixed.offered(1 * MS, 1, 100 * MS)
    result = fixed.snapshot(20 * MS)
    assert (result["answers"], result["batches"], result["late"]) == (2, 1, 1)
    assert result["mean_us"] == pytest.approx((8 + 7) / 2 * 1e3)


def test_a_full_batch_does_not_wait() -> None:
    fixed = shadow(2)
    fixed.offered(0, 5, 100 * MS)
    result = fixed.snapshot(100 * MS)
    assert result["mean_us"] == pytest.approx((4 * 8 + 8 + 5) / 5 * 1e3)


def test_deadlines_of_a_run_may_differ() -> None:
    greedy = shadow()
    greedy.offered(0, 3, np.array([1, 100, 6], np.int64) * MS)
    assert greedy.snapshot(50 * MS)["late"] == 2


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_late_is_who_was_answered_too_late_and_dropped_who_was_not(name: str) -> None:
    """The same with every policy: it runs until 6 ms, when one of those that wait has expired."""
    service = ServiceModel({1: 6 * MS, 4: 6 * MS})
    one = Shadow(name, policy_named(name, 50 * MS), service, 4, 50 * MS)
    one.offered(0, 4, 100 * MS)
    one.offered(1 * MS, 3, np.array([90, 4, 80], np.int64) * MS)
    result = one.snapshot(10**12)
    assert (result["answers"], result["in_time"], result["late"], result["dropped"]) == (6, 6, 0, 1)


def test_a_result_at_the_deadline_is_late() -> None:
    greedy = shadow()
    greedy.offered(0, 1, 5 * MS)
    assert greedy.snapshot(10**9)["late"] == 1


def test_those_who_have_expired_leave_room() -> None:
    greedy, most = shadow(), MAX_WAITING_BATCHES * 4
    greedy.offered(0, 4, 100 * MS)  # run until 8
    greedy.offered(0, most, 2 * MS)
    greedy.offered(1 * MS, 1, 100 * MS)
    greedy.offered(2 * MS, 1, 100 * MS)
    result = greedy.snapshot(10**12)
    assert (result["refused"], result["dropped"], result["answers"]) == (1, most, 5)


def test_what_waits_is_bounded_and_the_rest_is_counted() -> None:
    greedy = shadow()
    greedy.offered(0, 10_000, 10_000 * MS)
    result = greedy.snapshot(10**12)
    assert result["answers"] == MAX_WAITING_BATCHES * 4
    assert result["refused"] == 10_000 - MAX_WAITING_BATCHES * 4


@given(
    st.lists(st.tuples(st.integers(0, 20 * MS), st.integers(1, 9)), max_size=30), st.sampled_from([None, 2.0])
)
def test_every_request_is_answered_once(arrivals: list[tuple[int, int]], window_ms: float | None) -> None:
    one = shadow(window_ms)
    now_ns = 0
    for gap_ns, count in arrivals:
        now_ns += gap_ns
        one.offered(now_ns, count, 50 * MS)
    result = one.snapshot(now_ns + 10**12)
    assert result["answers"] + result["refused"] + result["dropped"] == sum(count for _, count in arrivals)
    assert result["in_time"] + result["late"] == result["answers"]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_named_policy_can_be_a_shadow(name: str) -> None:
    """At four fifths of the capacity each of them answers, or gives up, whatever it was offered."""
    service = ServiceModel({1: 5 * MS, 32: 11 * MS})
    one = Shadow(name, policy_named(name, 50 * MS), service, 32, 50 * MS)
    rng, now_ns = random.Random(2), 0.0
    for _ in range(4_000):
        now_ns += rng.expovariate(0.8 * 32 / (11 * MS))
        one.offered(int(now_ns), 1, 50 * MS)
    result = one.snapshot(int(now_ns) + 10**10)
    assert result["answers"] + result["refused"] + result["dropped"] == 4_000
    assert result["answers"] > 2_000


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.sampled_from([1.0, 50.0, 99.0, 100.0]))
def test_a_percentile_is_right_within_its_class(latencies_ns: list[int], percent: float) -> None:
    counted = Latencies()
    for latency_ns in latencies_ns:
        counted.add(latency_ns)
    exact = float(np.percentile(latencies_ns, percent, method="inverted_cdf"))
    assert exact <= counted.percentile_ns(percent) <= exact * (1 + 1 / 16) + 1


def test_percentiles_of_weights() -> None:
    counted = Latencies()
    counted.add(10, 98)
    counted.add(1_000, 2)
    assert counted.percentile_ns(50) == 10
    assert counted.percentile_ns(99) >= 1_000
    assert Latencies().snapshot() == {"answers": 0, "mean_us": 0.0, "p50_us": 0.0, "p99_us": 0.0}


def test_blind_waiting_hurts_at_low_load_as_the_closed_form_says() -> None:
    """Waiting for a window on an idle executor adds the window, and greedy at x = .25 takes 1.12 service times."""
    service = ServiceModel({1: MS, 32: MS})
    greedy = Shadow("greedy", WorkConserving(0), service, 32, 10**9)
    rng, now_ns = random.Random(1), 0.0
    for _ in range(40_000):
        now_ns += rng.expovariate(0.25 / MS)
        greedy.offered(int(now_ns), 1, 10**9)
    assert greedy.snapshot(10**18)["mean_us"] / 1e3 == pytest.approx(1.12, abs=0.01)


def test_the_server_s_own_policy_fills_its_batches() -> None:
    """It knows run times and deadlines in its shadow, too: near saturation it is as good as greedy, and in time."""
    service = ServiceModel({1: 4_100_000, 32: 7_200_000})
    own, greedy = (
        Shadow(name, policy_named(name, 50 * MS), service, 32, 50 * MS) for name in ("adaptive", "greedy")
    )
    rng, now_ns = random.Random(3), 0.0
    for _ in range(5_000):
        now_ns += rng.expovariate(0.9 * 32 / 7_200_000)
        own.offered(int(now_ns), 1, 50 * MS)
        greedy.offered(int(now_ns), 1, 50 * MS)
    found, other = own.snapshot(10**15), greedy.snapshot(10**15)
    assert found["answers"] == other["answers"] == 5_000
    assert found["late"] == 0
    assert found["mean_us"] < 1.02 * other["mean_us"]
