"""The cut rules: pure functions of a view and a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.batching import Adaptive, Dispatch, QueueView, ServiceModel, WaitUntil
from trioserve.batching._adaptive import BLIND_ROWS, PROMPT_NS, SHORTEST_WAIT_NS, _fit
from trioserve.batching._policy import NEVER_NS, TIMER_LATENESS_NS, NoService, no_deadlines
from trioserve_protocol import CutReason

US = 1_000
MS = 1_000_000
NOW = 10**9
FAR = NOW + 1_000 * MS
FULL, NO_GAIN, SLACK, WINDOW = CutReason.FULL, CutReason.NO_GAIN, CutReason.SLACK, CutReason.WINDOW


def line(alpha_ms: float, beta_ms: float, deviation: float = 0.05) -> ServiceModel:
    means = {size: int((alpha_ms + beta_ms * size) * MS) for size in (1, 2, 4, 8)}
    return ServiceModel(means, {size: int(mean * deviation) for size, mean in means.items()})


SERVICE = line(4, 0.1)


def view(deadlines_ns: list[int] | None = None, **changes: Any) -> QueueView:
    """Two ready rows of at most eight, on an idle executor; S = 4 ms + 0.1 ms a row, +- 5 %."""
    service: ServiceModel = changes.get("service", SERVICE)
    waiting = [FAR] * changes.get("queued_rows", 2) if deadlines_ns is None else deadlines_ns
    plain = QueueView(
        queued_rows=len(waiting),
        max_rows=8,
        oldest_ready_ns=NOW,
        head_deadline_ns=min(waiting, default=FAR),
        announced_rows=0,
        announced_eta_ns=0,
        last_completion_ns=NOW - 5 * MS,
        free_ns=0,
        fixed_ns=service.alpha_ns,
        per_row_ns=service.beta_ns,
        service=service,
        deadlines_ns=lambda rows: waiting[:rows],
        sla_ns=50 * MS,
    )
    return plain._replace(**changes)


def coming(*after_ns: int, likely: float = 1.0) -> dict[str, Any]:
    return {"etas": lambda now_ns: [(NOW + after, likely) for after in after_ns]}


def decide(queue: QueueView, now_ns: int = NOW, **policy: int) -> Dispatch | WaitUntil:
    return Adaptive(**policy).decide(queue, now_ns)


def test_what_is_ready_is_not_kept_waiting() -> None:
    assert decide(view()) == Dispatch(2, NO_GAIN)


def test_a_full_batch_is_full() -> None:
    assert decide(view(queued_rows=9)) == Dispatch(8, FULL)
    assert decide(view(queued_rows=9, full_rows=5)) == Dispatch(5, FULL)


def test_while_nothing_is_known_batches_are_small() -> None:
    assert decide(view(queued_rows=9, service=ServiceModel({}))) == Dispatch(BLIND_ROWS, NO_GAIN)
    assert NoService().quantile_ns(3) == 0
    assert no_deadlines(3) == []


# ---------------------------------------------------------------- behind a busy executor


def test_a_batch_stays_open_while_the_executor_is_busy() -> None:
    assert decide(view(queued_rows=7, free_ns=NOW + 3 * MS)) == WaitUntil(NEVER_NS)
    assert decide(view(queued_rows=7, free_ns=NOW - MS)) == WaitUntil(NEVER_NS)  # it is overdue, and not free
    busy = view(queued_rows=9, free_ns=NOW + 3 * MS)
    assert decide(busy, lead_ns=50 * US) == WaitUntil(NOW + 3 * MS - 50 * US)
    assert decide(busy, NOW + 3 * MS - 50 * US, lead_ns=50 * US) == Dispatch(8, FULL)


def test_short_batches_go_to_a_busy_executor_at_once() -> None:
    """A timer's lateness would be a tenth of one."""
    prompt: dict[str, Any] = {"service": line(0.3, 0.01), "is_prompt": True}
    soon_ns, later_ns = NOW + MS // 4, NOW + PROMPT_NS
    assert decide(view(queued_rows=9, free_ns=soon_ns, **prompt)) == Dispatch(8, FULL)
    assert decide(view(queued_rows=7, free_ns=soon_ns, **prompt)) == Dispatch(7, NO_GAIN)
    assert decide(view(queued_rows=9, free_ns=later_ns, **prompt)) == WaitUntil(later_ns)
    blind = view(queued_rows=9, free_ns=soon_ns, service=ServiceModel({}), is_prompt=True)
    assert decide(blind) == WaitUntil(soon_ns)


# ---------------------------------------------------------------- deadlines


def test_heads_that_cannot_be_answered_are_dropped_by_the_mean() -> None:
    alone_ns = int(SERVICE.mean_ns(1))
    hopeless, just = NOW + alone_ns - 1, NOW + alone_ns
    assert decide(view([hopeless, hopeless, FAR])) == Dispatch(0, SLACK, drop=2)
    assert decide(view([just, FAR])) == Dispatch(1, SLACK)
    assert decide(view([hopeless])) == Dispatch(0, SLACK, drop=1)


def test_a_batch_is_made_as_small_as_its_head_needs() -> None:
    """The margin is half the distance to the quantile: 4.6 ms + 0.5 * 3 * 0.23 ms for six rows."""
    deadline_ns = NOW + int(SERVICE.mean_ns(6) + 1.5 * SERVICE.deviation_ns(6))
    assert decide(view([deadline_ns + US] + [FAR] * 6)) == Dispatch(6, SLACK)
    assert decide(view([deadline_ns - US] + [FAR] * 6)) == Dispatch(5, SLACK)
    assert decide(view([deadline_ns - US] + [FAR] * 6, kg=0.0)) == Dispatch(7, NO_GAIN)


def test_where_nothing_was_learnt_for_a_while_the_last_head_is_tried() -> None:
    hopeless = NOW + 3 * MS
    stale: dict[str, Any] = {"is_stale": True}
    assert decide(view([hopeless], **stale)) == Dispatch(1, NO_GAIN)
    assert decide(view([hopeless] * 3, **stale)) == Dispatch(0, SLACK, drop=2)
    assert decide(view([hopeless, FAR], **stale)) == Dispatch(0, SLACK, drop=1)
    assert decide(view([hopeless] * 8, **stale, free_ns=NOW), lead_ns=MS) == Dispatch(0, SLACK, drop=8)


def test_a_batch_that_just_fits_its_head_is_whole() -> None:
    deadline_ns = NOW + int(SERVICE.mean_ns(8)) + US
    assert decide(view([deadline_ns] * 8, kg=0.0)) == Dispatch(8, FULL)


def test_a_head_is_given_up_for_a_better_batch() -> None:
    """S = 1 ms + 1 ms a row: the head could have one row, in time, and the eight behind it would all be late."""
    service = line(1, 1)
    tight, others = NOW + int(2.2 * MS), NOW + int(9.5 * MS)
    queue = view([tight] + [others] * 8, service=service)
    assert decide(queue) == Dispatch(8, FULL, drop=1)


def test_a_head_is_kept_if_those_behind_it_can_wait() -> None:
    service = line(1, 1)
    queue = view([NOW + int(2.2 * MS)] + [FAR] * 8, service=service)
    assert decide(queue) == Dispatch(1, SLACK)


def test_a_head_is_kept_if_giving_it_up_gains_nothing() -> None:
    service = line(0, 1)
    queue = view([NOW + int(4.5 * MS)] * 3 + [NOW + int(4.8 * MS)] * 3, service=service)
    assert decide(queue) == Dispatch(4, SLACK)


def test_there_may_be_nobody_behind_who_is_in_time() -> None:
    service = line(1, 1)
    queue = view([NOW + int(2.2 * MS)] * 9, service=service)
    assert decide(queue) == Dispatch(1, SLACK)


def test_a_head_that_is_alone_has_nobody_to_be_kept_from() -> None:
    assert decide(view([NOW + int(SERVICE.mean_ns(1))])) == Dispatch(1, NO_GAIN)


def test_a_row_of_a_lesser_class_that_is_lost_makes_no_batch_smaller() -> None:
    """It is not first, because its key is not its deadline."""
    assert decide(view([FAR, NOW + MS, FAR])) == Dispatch(3, NO_GAIN)
    service = line(1, 1)
    assert decide(view([NOW + int(2.2 * MS), NOW + MS], service=service)) == Dispatch(1, SLACK)


# ---------------------------------------------------------------- waits


def test_somebody_who_is_nearly_here_is_waited_for() -> None:
    assert decide(view(**coming(300 * US))) == WaitUntil(NOW + 300 * US + SHORTEST_WAIT_NS)
    assert decide(view(**coming(-5))) == WaitUntil(NOW + 2 * SHORTEST_WAIT_NS)


def test_no_window_is_no_waiting() -> None:
    assert decide(view(**coming(300 * US)), window_ns=0) == Dispatch(2, NO_GAIN)


def test_a_wait_must_save_more_than_it_costs() -> None:
    """One who comes in t saves 4 ms - 2 * 0.1 ms - t, and costs the two that wait t each."""
    worth_ns = int((4 - 0.2) * MS / 3)
    assert isinstance(decide(view(**coming(worth_ns - US))), WaitUntil)
    assert decide(view(**coming(worth_ns + US))) == Dispatch(2, NO_GAIN)
    assert decide(view(**coming(worth_ns - US), rate=3 / MS)) == Dispatch(2, NO_GAIN)
    assert decide(view(**coming(worth_ns - US, likely=0.8))) == Dispatch(2, NO_GAIN)


def test_several_are_waited_for_if_that_is_better() -> None:
    assert decide(view(**coming(100 * US, 120 * US, 150 * US))) == WaitUntil(NOW + 170 * US)
    assert decide(view(**coming(100 * US, 120 * US, 1_900 * US))) == WaitUntil(NOW + 140 * US)


def test_only_as_many_are_waited_for_as_there_is_room_for() -> None:
    nearly = view(queued_rows=7, **coming(100 * US, 150 * US))
    assert decide(nearly) == WaitUntil(NOW + 120 * US)


def test_a_model_without_fixed_cost_waits_for_nobody() -> None:
    assert decide(view(service=line(0.1, 1), **coming(10))) == Dispatch(2, NO_GAIN)


def test_the_window_counts_from_when_row_and_executor_were_ready() -> None:
    waiting = view(oldest_ready_ns=NOW - 5 * MS, **coming(50 * US))
    assert decide(waiting._replace(last_completion_ns=NOW - 2 * MS)) == Dispatch(2, WINDOW)
    assert isinstance(decide(waiting._replace(last_completion_ns=NOW - MS)), WaitUntil)
    assert decide(view(**coming(400 * US)), window_ns=300 * US) == Dispatch(2, NO_GAIN)
    assert decide(view(**coming(295 * US)), window_ns=300 * US) == WaitUntil(NOW + 300 * US)


def test_a_pressing_deadline_ends_the_wait() -> None:
    needed_ns = int(SERVICE.quantile_ns(3)) + TIMER_LATENESS_NS
    pressing = view([NOW + needed_ns + 30 * US, FAR], **coming(25 * US))
    assert decide(pressing) == WaitUntil(NOW + 30 * US)
    assert decide(pressing, NOW + 30 * US) == Dispatch(2, SLACK)
    assert decide(view([NOW + needed_ns + 30 * US, FAR], **coming(35 * US))) == Dispatch(2, NO_GAIN)


# ---------------------------------------------------------------- refusals announce demand


def test_while_requests_are_refused_a_batch_fills_up() -> None:
    demand: dict[str, Any] = {"shed_ns": NOW - MS, "rate": 8 / MS}
    assert decide(view(**demand)) == WaitUntil(NOW + 125 * US)
    assert decide(view(**demand | {"rate": 80 / MS})) == WaitUntil(NOW + 50 * US)
    assert decide(view(**demand | {"shed_ns": NOW - 50 * MS})) == Dispatch(2, NO_GAIN)
    assert decide(view(**demand | {"rate": 0.0})) == Dispatch(2, NO_GAIN)


def test_a_batch_does_not_fill_up_beyond_its_heads_deadline() -> None:
    rows = 3
    needed_ns = SERVICE.mean_ns(rows) + 1.5 * SERVICE.deviation_ns(rows) + 125 * US + TIMER_LATENESS_NS
    demand: dict[str, Any] = {"shed_ns": NOW - MS, "rate": 8 / MS}
    assert isinstance(decide(view([NOW + int(needed_ns) + US, FAR], **demand)), WaitUntil)
    assert decide(view([NOW + int(needed_ns) - US, FAR], **demand)) == Dispatch(2, NO_GAIN)


def test_filling_up_must_make_it_more_efficient() -> None:
    demand: dict[str, Any] = {"shed_ns": NOW - MS, "rate": 0.1 / MS}
    assert decide(view(**demand)) == Dispatch(2, NO_GAIN)


# ---------------------------------------------------------------- several executors


def test_executors_take_turns() -> None:
    pair: dict[str, Any] = {"executors": 2, "busy": 1, "rate": 1 / MS, "last_start_ns": NOW - MS}
    turn_ns = NOW - MS + int(SERVICE.mean_ns(2) / 2)
    assert decide(view(**pair)) == WaitUntil(turn_ns)
    assert decide(view(**pair), turn_ns) == Dispatch(2, NO_GAIN)
    assert decide(view(**pair | {"busy": 0})) == Dispatch(2, NO_GAIN)
    assert decide(view(**pair | {"rate": 0.01 / MS})) == Dispatch(2, NO_GAIN)
    assert decide(view(**pair, service=line(1, 1))) == Dispatch(2, NO_GAIN)


def test_a_turn_ends_with_the_window() -> None:
    pair: dict[str, Any] = {"executors": 2, "busy": 1, "rate": 1 / MS, "last_start_ns": NOW}
    assert decide(view(**pair), window_ns=MS * 3 // 2) == WaitUntil(NOW + MS * 3 // 2)


def test_a_turn_that_is_too_far_away_is_not_waited_for() -> None:
    pair: dict[str, Any] = {"executors": 2, "busy": 1, "rate": 1 / MS, "last_start_ns": NOW}
    assert decide(view(**pair), window_ns=MS) == Dispatch(2, NO_GAIN)


# ---------------------------------------------------------------- in general

INSTANTS = st.integers(NOW - 20 * MS, NOW + 60 * MS)


@given(
    st.lists(INSTANTS, min_size=1, max_size=20).map(sorted),
    st.lists(INSTANTS, max_size=10).map(sorted),
    st.sampled_from([line(4, 0.1), line(1, 1), line(20, 0.5, 0.2), line(0.05, 0.001), ServiceModel({})]),
    st.fixed_dictionaries(
        {
            "oldest_ready_ns": st.integers(NOW - 50 * MS, NOW),
            "last_completion_ns": st.integers(NOW - 50 * MS, NOW),
            "free_ns": INSTANTS,
            "shed_ns": st.integers(NOW - 100 * MS, NOW),
            "rate": st.floats(0, 1e-3),
            "full_rows": st.integers(1, 8),
            "kg": st.floats(0.25, 1.2),
            "executors": st.integers(1, 3),
            "busy": st.integers(0, 2),
            "last_start_ns": st.integers(NOW - 20 * MS, NOW),
        }
    ),
    st.sampled_from([0, 100 * US]),
)
def test_a_decision_is_a_possible_batch_or_a_time_to_come(
    deadlines_ns: list[int], etas: list[int], service: ServiceModel, state: dict[str, Any], lead_ns: int
) -> None:
    """A wait that is over when it begins would be a busy loop; a wait beyond the window, a lost request."""
    queue = view(deadlines_ns, service=service, etas=lambda now_ns: [(eta, 0.9) for eta in etas], **state)
    decision = decide(queue, lead_ns=lead_ns)
    if isinstance(decision, Dispatch):
        assert 0 <= decision.drop <= len(deadlines_ns)
        assert decision.rows <= min(8, len(deadlines_ns) - decision.drop)
        assert decision.rows or decision.drop
    else:
        assert decision.at_ns > NOW
        idle_from_ns = max(queue.oldest_ready_ns, queue.last_completion_ns)
        filling = NOW - queue.shed_ns < queue.sla_ns
        busy = bool(queue.free_ns)
        assert busy or filling or decision.at_ns <= idle_from_ns + 2 * MS


@given(st.lists(st.integers(NOW, NOW + 20 * MS), min_size=1, max_size=12).map(sorted))
def test_a_head_that_can_be_answered_is_late_by_no_choice_of_ours(deadlines_ns: list[int]) -> None:
    """Whoever is left in the batch is in time by the mean, unless the head is alone."""
    decision = decide(view(deadlines_ns))
    if isinstance(decision, Dispatch) and decision.rows:
        head_ns = deadlines_ns[decision.drop]
        assert head_ns >= NOW + SERVICE.mean_ns(decision.rows) - 1 or decision.rows == 1


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=80) | st.lists(st.integers(1, 60), min_size=30),
    st.integers(1, 8),
    st.floats(0, 2),
    st.booleans(),
)
def test_of_a_long_queue_few_deadlines_are_asked_for(
    tenths_ms: list[int],
    full: int,
    kg: float,
    by_deadline: bool,  # noqa: FBT001 - drawn
) -> None:
    """Two batches of them, unless many heads are lost; and what is decided is what all of them would have led to."""
    waiting = [NOW + tenth * 100 * US for tenth in (sorted(tenths_ms) if by_deadline else tenths_ms)]
    asked: list[int] = []

    def deadlines_ns(rows: int) -> list[int]:
        asked.append(rows)
        return waiting[:rows]

    case = view(waiting, kg=kg)
    dropped, rows = _fit(case._replace(deadlines_ns=deadlines_ns), full, NOW)
    assert (dropped, rows) == _fit(case._replace(deadlines_ns=lambda rows: waiting), full, NOW)
    assert asked[0] == min(2 * full, len(waiting))
    assert asked[-1] <= 2 * max(full, dropped + full)
    assert len(asked) <= 1 + max(0, dropped)


def test_a_policy_has_a_window_of_two_milliseconds_by_default() -> None:
    assert Adaptive().window_ns == pytest.approx(2 * MS)
