import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.client._failures import ConnectFailed, NotSent
from trioserve.client._retry import Reconnector, RetryBudget, RetryPolicy
from trioserve.errors import InvalidShape, Shed, TrioserveError, Unavailable, WorkerLost

POLICY = RetryPolicy()
NEVER = math.inf


def budget(policy: RetryPolicy = POLICY, uniform: float = 0.0) -> RetryBudget:
    return RetryBudget(policy, lambda: uniform)


def test_retries_only_what_the_server_calls_retryable() -> None:
    attempts = budget().attempts()
    assert attempts.pause_s(InvalidShape(), 0.0, NEVER) is None
    assert not attempts.retrying
    assert attempts.pause_s(Unavailable(retryable=False), 0.0, NEVER) is None
    assert attempts.pause_s(Unavailable(), 0.0, NEVER) == pytest.approx(0.01)
    assert attempts.retrying


def test_does_not_send_again_what_may_have_killed_a_worker() -> None:
    shared = budget()
    assert WorkerLost().retryable
    assert shared.attempts().pause_s(WorkerLost(), 0.0, NEVER) is None
    assert shared.tokens == POLICY.budget_tokens


def test_pauses_double_up_to_a_bound_and_are_drawn_from_the_upper_half() -> None:
    policy = RetryPolicy(first_delay_s=0.1, max_delay_s=0.3)
    assert [policy.pause_s(n, lambda: 0.0) for n in (1, 2, 3, 50)] == pytest.approx([0.05, 0.1, 0.15, 0.15])
    assert policy.pause_s(2, lambda: 0.999) == pytest.approx(0.2, rel=1e-2)


def test_a_call_has_a_bounded_number_of_attempts() -> None:
    attempts = budget().attempts()
    pauses = [attempts.pause_s(Unavailable(), 0.0, NEVER) for _ in range(4)]
    assert [pause is not None for pause in pauses] == [True, True, True, False]


def test_waits_as_long_as_the_server_says() -> None:
    assert budget().attempts().pause_s(Shed(retry_after_s=0.7), 0.0, NEVER) == 0.7
    assert budget().attempts().pause_s(Shed(retry_after_s=0.0), 0.0, NEVER) == pytest.approx(0.01)


@pytest.mark.parametrize(("deadline_s", "pause_s"), [(10.7, None), (10.71, 0.7)])
def test_does_not_wait_past_the_callers_deadline(deadline_s: float, pause_s: float | None) -> None:
    assert budget().attempts().pause_s(Shed(retry_after_s=0.7), 10.0, deadline_s) == pause_s


def test_a_storm_of_failures_stops_at_half_of_the_tokens() -> None:
    shared = budget()
    retried = [shared.attempts().pause_s(Shed(), 0.0, NEVER) is not None for _ in range(100)]
    assert retried == [True] * 5 + [False] * 95
    assert shared.tokens == 0


def test_successes_give_tenths_back() -> None:
    shared = budget()
    for _ in range(5):
        shared.attempts().pause_s(Shed(), 0.0, NEVER)
    for _ in range(11):
        shared.succeeded()
    assert shared.tokens == pytest.approx(6.1)
    for _ in range(100):
        shared.succeeded()
    assert shared.tokens == 10


@given(st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_a_tenth_of_the_successes_plus_the_first_five(outcomes: list[bool]) -> None:
    shared, retries = budget(), 0
    for ok in outcomes:
        if ok:
            shared.succeeded()
        else:
            retries += shared.attempts().pause_s(Shed(), 0.0, NEVER) is not None
        assert 0 <= shared.tokens <= 10
    assert retries <= 5 + 0.1 * sum(outcomes) + 1


def test_what_no_server_took_is_sent_again_outside_the_budget_but_not_for_ever() -> None:
    shared = budget()
    attempts = shared.attempts()
    pauses = [attempts.pause_s(NotSent(), 0.0, NEVER) for _ in range(9)]
    assert pauses[0] == 0.0
    assert pauses[1] == pytest.approx(0.01)
    assert pauses[-1] is None
    assert None not in pauses[:-1]
    assert shared.tokens == 10
    assert not attempts.retrying


def test_an_unsent_request_too_waits_for_no_dead_caller() -> None:
    attempts = budget().attempts()
    assert attempts.pause_s(NotSent(), 5.0, 5.0) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"first_delay_s": -1},
        {"max_delay_s": math.nan},
        {"budget_tokens": -1},
        {"refund_tokens": -0.1},
        {"connect_timeout_s": 0},
    ],
)
def test_refuses_settings_that_cannot_work(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RetryPolicy(**settings)  # type: ignore[arg-type]


def test_callers_that_waited_through_a_failed_connect_share_its_failure() -> None:
    reconnector = Reconnector(POLICY, lambda: 0.0)
    early = reconnector.ticket()
    assert reconnector.verdict(early) is None
    reconnector.failed(ConnectFailed("refused"), 10.0)
    verdict = reconnector.verdict(early)
    assert isinstance(verdict, TrioserveError)
    assert verdict.message == "refused"
    assert reconnector.verdict(reconnector.ticket()) is None


def test_connects_are_spaced_out_until_one_succeeds() -> None:
    reconnector = Reconnector(POLICY, lambda: 0.0)
    assert reconnector.pause_s(0.0) == 0
    reconnector.failed(ConnectFailed(), 10.0)
    assert reconnector.pause_s(10.0) == pytest.approx(0.01)
    reconnector.failed(ConnectFailed(), 10.0)
    assert reconnector.pause_s(10.0) == pytest.approx(0.02)
    assert reconnector.pause_s(20.0) == 0
    reconnector.succeeded()
    assert reconnector.pause_s(10.0) == 0
