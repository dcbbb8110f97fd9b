"""One model's scheduler: admission and cut together, and what they learn."""

from __future__ import annotations

import pytest

from trioserve.admission import Standing
from trioserve.batching import Adaptive, AdditiveIncrease, Dispatch, FixedWindow, ServiceModel, WaitUntil
from trioserve.engine import NEVER_NS, Occupancy, Scheduler
from trioserve.testing._simulated_queue import SimulatedQueue
from trioserve_protocol import CutReason, ErrorCode

MS = 1_000_000
NOW = 10**9
OK, SHED = ErrorCode.OK, ErrorCode.SHED


class Lane:
    """A model of batches of eight that take 4 ms + 0.1 ms a row, its slots, and its scheduler."""

    def __init__(self, executors: int = 1, warmup_ns: dict[int, int] | None = None) -> None:
        self.deadline_ns: list[int] = []
        self.ready_ns: list[int] = []
        self.queue = SimulatedQueue(self.deadline_ns)
        warmup_ns = {1: 4_100_000, 8: 4_800_000} if warmup_ns is None else warmup_ns
        self.scheduler = Scheduler(
            self.queue,
            self,
            Adaptive(),
            ServiceModel(warmup_ns),
            max_rows=8,
            sla_ns=50 * MS,
            random=lambda: 0.5,
            occupancy=Occupancy(executors),
        )

    def ready(self, count: int, deadline_ns: int, now_ns: int = NOW) -> None:
        for _ in range(count):
            self.deadline_ns.append(deadline_ns)
            self.ready_ns.append(now_ns)
            self.queue.push(len(self.deadline_ns) - 1, deadline_ns)

    def offer(self, count: int, deadline_ns: int, now_ns: int = NOW) -> tuple[int, ErrorCode]:
        answer = self.scheduler.admit(count, 1, deadline_ns, now_ns)
        self.ready(answer[0], deadline_ns, now_ns)
        return answer


def test_far_from_saturation_all_are_admitted() -> None:
    lane = Lane()
    assert lane.offer(5, NOW + 50 * MS) == (5, OK)
    assert lane.scheduler.reserved == 5
    assert not lane.scheduler.is_tense(NOW)
    lane.scheduler.reserved -= 2
    assert lane.scheduler.reserved == 3


def test_under_overload_the_front_of_a_run_is_admitted() -> None:
    lane = Lane()
    admitted, code = lane.offer(500, NOW + 50 * MS)
    assert code == SHED
    assert 64 <= admitted <= 80
    assert lane.scheduler.is_tense(NOW)
    assert not lane.scheduler.is_tense(NOW + 50 * MS)
    assert lane.scheduler.shed_ns == NOW
    after_us = lane.scheduler.retry_after_us(NOW)
    assert 0 < after_us < lane.scheduler.retry_after_us(NOW)


def test_a_deadline_that_nobody_could_meet_is_infeasible() -> None:
    assert Lane().offer(1, NOW + 3 * MS) == (0, ErrorCode.DEADLINE_INFEASIBLE)
    assert Lane().offer(2, NOW + 4 * MS) == (0, ErrorCode.DEADLINE_INFEASIBLE)


def test_while_nothing_is_known_all_are_admitted() -> None:
    lane = Lane(warmup_ns={})
    assert lane.offer(50, NOW + MS) == (50, OK)
    assert lane.scheduler.decide(0, NOW) == Dispatch(4, CutReason.NO_GAIN)


def test_a_payload_on_its_way_takes_the_full_rule_unless_there_is_time_enough() -> None:
    lane = Lane()
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, eta_ns=10 * MS) == (1, OK)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, eta_ns=40 * MS) == (1, OK)
    assert not lane.scheduler.is_tense(NOW)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, eta_ns=45_600_000) == (1, OK)
    assert lane.scheduler.is_tense(NOW)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, eta_ns=48 * MS)[1] == ErrorCode.DEADLINE_INFEASIBLE


def test_a_tenant_over_its_share_is_shed_first() -> None:
    lane = Lane()
    lane.offer(56, NOW + 50 * MS)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, standing=Standing(left_share=0.2)) == (0, SHED)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW) == (1, OK)


def test_a_lesser_class_leaves_room_for_what_better_ones_will_ask_for() -> None:
    lane = Lane()
    lane.offer(32, NOW + 50 * MS)
    lane.scheduler.started(8, NOW + 50 * MS, 0, NOW)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, standing=Standing(overtaking=0.9)) == (0, SHED)
    assert lane.scheduler.admit(1, 1, NOW + 50 * MS, NOW, standing=Standing(overtaking=0.1)) == (1, OK)


def test_who_is_in_a_hurry_goes_first_unless_that_makes_others_late() -> None:
    lane = Lane()
    admitted, _ = lane.offer(500, NOW + 50 * MS)
    assert lane.offer(1, NOW + 25 * MS) == (0, SHED)
    assert Lane().offer(1, NOW + 25 * MS) == (1, OK)
    assert lane.queue.ahead(NOW + 25 * MS) == 0
    assert admitted == lane.queue.rows


def test_what_is_announced_counts_as_ahead() -> None:
    lane = Lane()
    lane.scheduler.announced = 500.0
    assert lane.offer(1, NOW + 50 * MS) == (1, OK)  # nothing of it is reserved: the calm path
    lane.scheduler.reserved = 50.0
    assert lane.offer(1, NOW + 50 * MS) == (0, SHED)


# ---------------------------------------------------------------- batches


def test_a_batch_from_its_cut_to_what_it_teaches() -> None:
    lane = Lane()
    scheduler = lane.scheduler
    lane.offer(3, NOW + 50 * MS)
    assert scheduler.decide(0, NOW) == Dispatch(3, CutReason.NO_GAIN)
    lane.queue.take(3)
    cut = scheduler.started(3, NOW + 50 * MS, 0, NOW)
    assert cut.predicted_ns == NOW + 4_300_000
    assert not cut.near
    assert not scheduler.occupancy.idle
    scheduler.finished(cut, [], 5 * MS, NOW + 5 * MS)
    assert scheduler.occupancy.idle
    assert scheduler.last_completion_ns == NOW + 5 * MS
    assert scheduler.service.batches == 1
    assert scheduler.service.mean_ns(3) > 4_300_000
    assert scheduler.decide(0, NOW) == WaitUntil(NEVER_NS)


def test_a_batch_behind_another_starts_after_it() -> None:
    lane = Lane()
    scheduler = lane.scheduler
    first = scheduler.started(8, NOW + 50 * MS, 0, NOW)
    second = scheduler.started(8, NOW + 50 * MS, 0, NOW)
    assert second.predicted_ns - first.predicted_ns == 4_800_000
    lane.ready(1, NOW + 50 * MS)
    assert scheduler.decide(0, NOW) == WaitUntil(NEVER_NS)
    lane.ready(8, NOW + 50 * MS)
    assert scheduler.decide(0, NOW) == WaitUntil(second.predicted_ns)
    scheduler.finished(first, [], 6 * MS, first.predicted_ns + MS)
    assert scheduler.occupancy.free_ns[0] == second.predicted_ns + MS


def test_models_of_short_batches_learn_from_a_sample() -> None:
    lane = Lane(warmup_ns={1: 100_000, 8: 120_000})
    scheduler = lane.scheduler
    for number in range(10):
        cut = scheduler.started(1, NOW + 50 * MS, 0, NOW)
        scheduler.finished(cut, [], 100_000, NOW + number * 100_000)
    assert scheduler.service.batches == 1


def test_a_policy_that_learns_is_told() -> None:
    scheduler = Lane().scheduler
    policy = AdditiveIncrease(50 * MS)
    scheduler.use(policy)
    cut = scheduler.started(1, NOW + 50 * MS, 0, NOW)
    scheduler.finished(cut, [], 4 * MS, NOW + 4 * MS)
    assert policy.rows == 3
    scheduler.use(FixedWindow(0))
    cut = scheduler.started(3, NOW + 50 * MS, 0, NOW)
    scheduler.finished(cut, [], 4 * MS, NOW + 8 * MS)
    assert policy.rows == 3


def test_a_batch_may_be_full_by_its_tokens() -> None:
    lane = Lane()
    lane.ready(6, NOW + 50 * MS)
    assert lane.scheduler.view(0, NOW).queued_rows == 6
    lane.queue.outlook = lambda limit: (4, True)  # type: ignore[method-assign]
    view = lane.scheduler.view(0, NOW)
    assert (view.queued_rows, view.full_rows) == (6, 4)
    assert lane.scheduler.decide(0, NOW) == Dispatch(4, CutReason.FULL)


def test_a_batch_that_raised_teaches_nothing() -> None:
    scheduler = Lane().scheduler
    cut = scheduler.started(1, NOW + 50 * MS, 0, NOW)
    scheduler.finished(cut, [NOW - 1], 100_000, NOW, failed=True)
    assert scheduler.service.batches == 0
    assert scheduler.margins.kg == 0.5


def test_late_rows_make_the_cut_careful() -> None:
    scheduler = Lane().scheduler
    cut = scheduler.started(2, NOW + 4 * MS, 0, NOW)
    assert cut.near
    scheduler.finished(cut, [NOW + 4 * MS, NOW + 9 * MS], 5 * MS, NOW + 5 * MS)
    assert scheduler.margins.kg > 0.5
    assert scheduler.margins.z == 3.5  # all that was promised was promised calmly


def test_broken_promises_make_the_admission_careful() -> None:
    lane = Lane()
    scheduler = lane.scheduler
    admitted, _ = lane.offer(500, NOW + 50 * MS)
    cut = scheduler.started(8, NOW + 50 * MS, 0, NOW)
    scheduler.dropped(2, NOW)
    scheduler.finished(cut, [NOW + 6 * MS, NOW + 6 * MS], 5 * MS, NOW + 5 * MS)
    assert scheduler.margins.z == pytest.approx(3.5 + 0.1 - 0.002)  # two of four: those that were dropped
    assert scheduler.rule.z == scheduler.margins.z
    assert lane.offer(500, NOW + 50 * MS)[0] < admitted


def test_units_may_be_smaller_than_rows() -> None:
    lane = Lane(warmup_ns={8: 4_100_000, 64: 4_800_000})
    scheduler = lane.scheduler
    scheduler.units_per_row = 8.0
    scheduler.refresh()
    assert scheduler.rule.max_units == 64
    assert scheduler.full_rows == 8
    lane.ready(2, NOW + 50 * MS)
    view = scheduler.view(0, NOW)
    assert view.per_row_ns == pytest.approx(100_000)
    assert view.service.mean_ns(2) == pytest.approx(4_200_000)
    assert view.service.known
    assert view.service.k == 3
    assert view.service.deviation_ns(2) == pytest.approx(210_000, rel=0.01)
    assert view.service.quantile_ns(2) == pytest.approx(4_830_000, rel=0.01)


# ---------------------------------------------------------------- what is expected


def test_rows_on_their_way_are_expected() -> None:
    lane = Lane()
    scheduler = lane.scheduler
    lane.offer(1, NOW + 50 * MS)
    scheduler.announced = 2.0
    scheduler.announced_etas = lambda: [NOW + MS // 10, NOW - MS]
    assert scheduler.decide(0, NOW) == WaitUntil(NOW + 120_000)
    scheduler.announced = 0.0
    assert scheduler.decide(0, NOW) == Dispatch(1, CutReason.NO_GAIN)


def test_executors_are_told_apart() -> None:
    lane = Lane(executors=2)
    scheduler = lane.scheduler
    lane.ready(2, NOW + 50 * MS)
    assert scheduler.view(0, NOW).busy == 0
    scheduler.started(1, NOW + 50 * MS, 1, NOW)
    view = scheduler.view(0, NOW)
    assert (view.busy, view.executors, view.free_ns, view.last_start_ns) == (1, 2, 0, NOW)
    assert scheduler.view(1, NOW).free_ns == NOW + 4_100_000
    scheduler.reserved = 60.0
    assert lane.offer(1, NOW + 50 * MS) == (1, OK)


# ---------------------------------------------------------------- texts: units are tokens, deadlines are of rows


def in_tokens(lane: Lane, each: float = 20.0) -> Lane:
    """The same model, whose rows are `each` tokens."""
    service = {round(rows * each): ns for rows, ns in ((1, 4_100_000), (8, 4_800_000))}
    lane.scheduler.service = ServiceModel(service)
    lane.scheduler.units_per_row = each
    lane.scheduler.refresh()
    return lane


def admitted_before(lane: Lane, each: float, promised: int) -> int:
    """How many are let in front of so many rows who were promised a deadline 10 batches away."""
    deadline_ns = NOW + 48 * MS
    lane.ready(promised, deadline_ns)
    lane.scheduler.reserved = promised * each
    admitted = 0
    for _ in range(100):
        count, _ = lane.scheduler.admit(1, each, deadline_ns - 1, NOW)
        lane.ready(count, deadline_ns - 1)
        admitted += count
    return admitted


@pytest.mark.parametrize("promised", [8, 17, 40])
def test_texts_are_not_let_in_front_of_promised_ones_more_than_rows_are(promised: int) -> None:
    rows = admitted_before(Lane(), 1, promised)
    assert 72 - 8 <= rows + promised <= 72
    assert admitted_before(in_tokens(Lane()), 20.0, promised) == rows


def test_the_policy_is_told_of_rows_not_of_tokens() -> None:
    rows, tokens = Lane(), in_tokens(Lane())
    for lane, each in ((rows, 1.0), (tokens, 20.0)):
        lane.scheduler.offered.rates(0, NOW - 10 * MS)
        lane.scheduler.offered.count(5 * each, 50 * MS)
        lane.scheduler.announced = 3 * each
        lane.ready(2, NOW + 50 * MS)
    expected, view = rows.scheduler.view(0, NOW), tokens.scheduler.view(0, NOW)
    assert expected.rate > 0
    assert view.rate == pytest.approx(expected.rate)
    assert view.announced_rows == expected.announced_rows == 3


@pytest.mark.parametrize(("each", "requests"), [(1.0, 1), (1.0, 8), (20.0, 1), (20.0, 8)])
def test_capacity_is_promised_for_all_that_come_again(each: float, requests: int) -> None:
    """A full batch in 4.8 ms, of which 30 % are promised: 2 ms a row, whatever the unit and however they come."""
    lane = Lane() if each == 1.0 else in_tokens(Lane(), each)
    assert lane.scheduler.admit(500, each, NOW + 50 * MS, NOW)[1] == SHED
    first_us = lane.scheduler.retry_after_us(NOW)
    assert lane.scheduler.retry_after_us(NOW, requests) - first_us == pytest.approx(2_000 * requests, abs=2)
