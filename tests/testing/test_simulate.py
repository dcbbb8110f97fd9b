"""The scheduler in virtual time, against closed forms and against what it must reach."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest

from trioserve.batching import Adaptive, FixedWindow, Greedy, ServiceModel
from trioserve.testing import ClosedLoop, Simulation, Trace, bursty, constant, poisson, simulate
from trioserve.testing._simulated_queue import COMPACT_ROWS, SimulatedQueue

US = 1_000
MS = 1_000_000


def line(alpha_ms: float, beta_ms: float) -> ServiceModel:
    means = {size: int((alpha_ms + beta_ms * size) * MS) for size in (1, 2, 4, 8, 16, 32)}
    return ServiceModel(means, {size: mean * 56 // 1000 for size, mean in means.items()})


def overload(
    alpha_ms: float, beta_ms: float, sla_ms: int, load: float, **changes: Any
) -> tuple[Simulation, float]:
    """A Poisson stream at a multiple of the capacity, and its goodput as a part of the capacity."""
    capacity = 32_000 / (alpha_ms + 32 * beta_ms)
    seconds = changes.pop("requests", 8_000) / (capacity * load)
    stream = poisson(capacity * load, seconds, 1)
    result = simulate(Adaptive(), stream, line(alpha_ms, beta_ms), sla_ns=sla_ms * MS, **changes)
    return result, result.goodput_per_s(0.2 * seconds) / capacity


def test_every_request_ends_once() -> None:
    result, _ = overload(4, 0.1, 50, 2)
    assert result.ok + result.late + result.dropped + result.shed == result.requests
    assert sum(batch.rows for batch in result.batches) == result.ok + result.late
    assert result.scheduler.reserved == 0
    assert result.scheduler.queue.rows == 0


def test_the_same_arrivals_make_the_same_batches() -> None:
    first, again = (overload(4, 0.1, 50, 1.2, seed=5)[0] for _ in range(2))
    assert first.batches == again.batches
    assert np.array_equal(first.state, again.state)
    assert overload(4, 0.1, 50, 1.2, seed=6)[0].batches != first.batches


def test_batches_of_one_executor_follow_each_other() -> None:
    result, _ = overload(4, 0.1, 50, 0.8)
    assert all(a.finish_ns <= b.start_ns for a, b in zip(result.batches, result.batches[1:], strict=False))
    assert all(1 <= batch.rows <= 32 for batch in result.batches)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "sla_ms"), [(2, 50), (10, 50)])
def test_overload_costs_no_goodput(load: float, sla_ms: int) -> None:
    result, goodput = overload(4, 0.1, sla_ms, load, requests=4_000 * load)
    assert goodput >= 0.95
    assert result.late <= 0.01 * result.admitted
    assert result.dropped <= 0.01 * result.admitted
    assert result.sheds_that_left_room(32) <= 0.01 * result.shed
    assert result.latency_ms(99) <= sla_ms


def test_below_saturation_all_are_in_time() -> None:
    result, _ = overload(4, 0.1, 50, 0.8)
    assert result.in_time >= 0.999
    assert result.mean_latency_ms() < 12


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="traced: a measurement of the tracer")
def test_ten_thousand_requests_a_second_of_real_time() -> None:
    """It is five times as many; processor time, because others may be on the machine."""
    began_s = time.process_time()
    result, _ = overload(4, 0.1, 50, 2, requests=20_000)
    assert result.requests / (time.process_time() - began_s) >= 10_000


@pytest.mark.slow
def test_a_closed_loop_is_served_in_one_group() -> None:
    """Greedy falls into two alternating groups of four."""
    loop = ClosedLoop(8, 200 * US, seconds=2)
    adaptive = simulate(Adaptive(), loop, line(4, 0.1), sla_ns=1_000 * MS)
    greedy = simulate(FixedWindow(0), loop, line(4, 0.1), sla_ns=1_000 * MS)
    assert adaptive.mean_rows() > 7.5
    assert greedy.mean_rows() < 4.5
    assert adaptive.mean_latency_ms() <= 0.62 * greedy.mean_latency_ms()


@pytest.mark.slow
def test_a_burst_is_served_in_one_batch() -> None:
    """Eight requests 0.1 ms apart every 20 ms; greedy serves the first alone."""
    at_ns = (np.arange(200)[:, None] * 20 * MS + np.arange(8) * 100 * US).ravel()
    flat = ServiceModel({1: 5 * MS, 32: 5 * MS})
    adaptive = simulate(Adaptive(), Trace(at_ns), flat)
    greedy = simulate(Greedy(), Trace(at_ns), flat)
    assert adaptive.mean_latency_ms() <= 0.65 * greedy.mean_latency_ms()


@pytest.mark.slow
@pytest.mark.parametrize(("x", "expected"), [(0.25, 1.12), (1, 1.37), (3, 1.492)])
def test_greedy_takes_as_long_as_the_closed_form_says(x: float, expected: float) -> None:
    alpha_ms = 10
    service = ServiceModel({1: alpha_ms * MS})
    result = simulate(
        FixedWindow(0),
        poisson(x * 100, 30_000 / (x * 100), 3),
        service,
        max_rows=1_000,
        sla_ns=10**12,
        noise=0,
    )
    assert result.mean_latency_ms() / alpha_ms == pytest.approx(expected, rel=0.015)


@pytest.mark.slow
def test_a_client_that_is_refused_thinks_and_comes_again() -> None:
    result = simulate(Adaptive(), ClosedLoop(100, MS, seconds=0.5), line(4, 0.1), sla_ns=12 * MS)
    assert result.shed > 0
    assert result.ok > 1_000


def test_a_refused_request_comes_again_when_it_is_told_to() -> None:
    stream = poisson(8_000, 0.5, 1, retries=3)
    result = simulate(Adaptive(), stream, line(4, 0.1))
    assert len(stream) < result.requests <= 4 * len(stream)
    assert result.at_ns.max() > stream.at_ns.max()


def test_deadlines_that_differ_are_kept_in_their_order() -> None:
    """Half of the requests have 20 ms and half 200 ms; all that are admitted are in time."""
    stream = poisson(6_000, 1.0, 2)
    timeouts_ns = np.where(np.arange(len(stream)) % 2, 20 * MS, 200 * MS)
    mixed = Trace(stream.at_ns, timeout_ns=timeouts_ns)
    result = simulate(Adaptive(), mixed, line(4, 0.1), sla_ns=200 * MS)
    assert result.shed > 0
    assert result.late + result.dropped <= 0.02 * result.admitted


def test_a_body_that_is_nearly_here_is_waited_for() -> None:
    at_ns = np.array([0, 1_000], np.int64)
    body_ns = np.array([0, 300 * US], np.int64)
    result = simulate(Adaptive(), Trace(at_ns, body_ns=body_ns), line(4, 0.1), noise=0)
    assert [batch.rows for batch in result.batches] == [1, 1]
    result = simulate(Adaptive(), Trace(at_ns, body_ns=body_ns[::-1]), line(4, 0.1), noise=0)
    assert [batch.rows for batch in result.batches] == [2]
    both_ns = np.array([300 * US, 350 * US], np.int64)
    result = simulate(Adaptive(), Trace(at_ns, body_ns=both_ns), line(4, 0.1), noise=0)
    assert [batch.rows for batch in result.batches] == [2]


def test_executors_work_side_by_side() -> None:
    capacity = 2 * 32_000 / 7.2
    result = simulate(Adaptive(), poisson(2 * capacity, 0.8, 1), line(4, 0.1), executors=2)
    assert {batch.executor for batch in result.batches} == {0, 1}
    assert result.goodput_per_s(0.2) / capacity >= 0.95
    assert result.late + result.dropped <= 0.01 * result.admitted


def test_an_executor_may_be_given_a_batch_in_advance() -> None:
    result = simulate(Greedy(), poisson(3_000, 0.3, 1), line(4, 0.1), depth=2)
    assert all(a.finish_ns <= b.start_ns for a, b in zip(result.batches, result.batches[1:], strict=False))
    late_bound = simulate(Greedy(), poisson(3_000, 0.3, 1), line(4, 0.1))
    assert late_bound.mean_rows() > result.mean_rows()


def test_without_the_rule_promises_are_broken() -> None:
    result, _ = overload(4, 0.1, 50, 2, admission=False)
    assert result.shed > 0  # by the cap
    assert result.dropped > 0.05 * result.admitted


@pytest.mark.slow
def test_after_an_overload_all_is_well_again() -> None:
    capacity = 32_000 / 7.2
    stream = poisson(10 * capacity, 0.5, 1) + poisson(0.7 * capacity, 2.0, 2)
    result = simulate(Adaptive(), stream, line(4, 0.1))
    assert result.between(1.0).in_time == 1.0


# ---------------------------------------------------------------- classes and tenants

CRITICAL, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE = range(4)


def shares_by_class(load: float, parts: list[float], seconds: float = 1.5) -> tuple[Simulation, list[float]]:
    """What is answered in time of each class, by class bits, as a part of the capacity."""
    capacity = 32_000 / 7.2
    stream = poisson(load * capacity, seconds, 1)
    classes = np.random.default_rng(1).choice(4, len(stream), p=parts).astype(np.uint8)
    result = simulate(Adaptive(), Trace(stream.at_ns, classes=classes), line(4, 0.1))
    return result, [np.sum((result.state == 0) & (classes == one)) / capacity / seconds for one in range(4)]


@pytest.mark.slow
def test_a_flood_of_the_least_class_costs_the_others_nothing() -> None:
    result, ok = shares_by_class(2, [0.05, 0.05, 0, 0.9])
    assert ok[CRITICAL_PLUS] >= 0.09
    assert ok[CRITICAL] >= 0.09
    assert sum(ok) >= 0.95
    assert result.dropped <= 0.01 * result.admitted


@pytest.mark.slow
def test_under_overload_the_least_class_goes_first() -> None:
    """Each asks for half of the capacity."""
    result, ok = shares_by_class(2, [0.25, 0.25, 0.25, 0.25])
    assert ok[CRITICAL_PLUS] > 0.4
    assert ok[CRITICAL_PLUS] > ok[CRITICAL] > ok[SHEDDABLE_PLUS]
    assert sum(ok) >= 0.95
    assert result.dropped <= 0.01 * result.admitted


@pytest.mark.slow
def test_a_flood_of_the_best_class_leaves_a_floor_to_the_others() -> None:
    _, ok = shares_by_class(4, [0.0, 0.9, 0.05, 0.05])
    assert ok[SHEDDABLE] >= 0.035
    assert ok[SHEDDABLE_PLUS] >= 0.035


@pytest.mark.slow
def test_a_tenant_that_asks_for_ten_times_as_much_gets_an_equal_part() -> None:
    capacity, seconds = 32_000 / 7.2, 2.0
    parts = [
        poisson(load * capacity, seconds, seed).at_ns for seed, load in enumerate([2.5, 0.25, 0.25, 0.25])
    ]
    at_ns = np.concatenate(parts)
    order = np.argsort(at_ns, kind="stable")
    tenants = np.repeat(np.arange(4, dtype=np.uint32), [len(part) for part in parts])[order]
    result = simulate(Adaptive(), Trace(at_ns[order], tenants=tenants), line(4, 0.1))
    settled = result.at_ns > 0.3 * seconds * 1e9
    got = np.array([np.sum((result.state == 0) & (tenants == one) & settled) for one in range(4)], float)
    assert got.sum() ** 2 / (4 * (got**2).sum()) >= 0.98  # Jain's index
    assert result.dropped <= 0.01 * result.admitted


# ---------------------------------------------------------------- arrivals


def test_streams_have_the_rate_that_was_asked_for() -> None:
    for stream in (poisson(1_000, 20, 1), constant(1_000, 20), bursty(1_000, 20, 1)):
        assert len(stream) == pytest.approx(20_000, rel=0.1)
        assert (np.diff(stream.at_ns) >= 0).all()
        assert stream.seconds == pytest.approx(20, abs=0.1)
    assert Trace(np.zeros(0, np.int64)).seconds == 0


def test_bursts_are_bursts() -> None:
    def spread(stream: Trace) -> float:
        counts = np.histogram(stream.at_ns, bins=2_000)[0]
        return float(counts.var() / counts.mean())

    assert spread(poisson(1_000, 20, 1)) < 1.5
    assert spread(bursty(1_000, 20, 1)) > 3


def test_one_trace_behind_another() -> None:
    both = constant(10, 1) + constant(10, 1)
    assert len(both) == 20
    assert both.seconds == 2
    empty = Trace(np.zeros(0, np.int64))
    assert len(empty + constant(10, 1)) == 10


# ---------------------------------------------------------------- figures


def test_nothing_has_no_figures() -> None:
    result = simulate(Adaptive(), Trace(np.zeros(0, np.int64)), line(4, 0.1))
    assert np.isnan(result.mean_latency_ms())
    assert np.isnan(result.latency_ms(99))
    assert result.mean_rows() == 0
    assert result.reasons() == {}


def test_a_shed_left_room_if_a_later_batch_took_all_and_was_not_full() -> None:
    result, _ = overload(20, 0.5, 50, 0.8)
    left = result.sheds_that_left_room(32)
    assert 0 < left <= result.shed
    assert sum(result.reasons().values()) == len(result.batches)


def test_the_queue_of_the_simulator_is_in_order_of_key() -> None:
    deadlines_ns = list(range(3 * COMPACT_ROWS))
    queue = SimulatedQueue(deadlines_ns)
    for request in range(2 * COMPACT_ROWS):
        queue.push(request, 10 * request)
    assert len(queue.take(COMPACT_ROWS + 1)) == COMPACT_ROWS + 1
    queue.push(5, 10 * COMPACT_ROWS)
    assert queue.head == 5
    assert queue.ahead(10 * COMPACT_ROWS) == 1
    assert queue.ahead(10 * (COMPACT_ROWS + 1)) == 2
    assert queue.ahead(10**9) == queue.rows == COMPACT_ROWS
    assert queue.deadlines(2) == [5, COMPACT_ROWS + 1]
    assert queue.head_deadline_ns(3) == 5
    assert queue.expired(COMPACT_ROWS + 1) == [5, COMPACT_ROWS + 1]
    assert queue.expired(0) == []
    assert queue.rows == COMPACT_ROWS - 2
    queue.push(5, 10 * COMPACT_ROWS)
    assert list(queue.every(1, 2, 0))[:2] == [COMPACT_ROWS + 2, COMPACT_ROWS + 4]
