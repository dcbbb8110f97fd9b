"""When a worker that died is started again."""

import pytest

from trioserve.execution import WorkerSpec
from trioserve.execution._restarts import Pause, Restarts

SPEC = WorkerSpec(
    kind="executor",
    models=(),
    max_restarts=3,
    restart_window_s=60.0,
    restart_backoff_s=0.1,
    retry_failed_s=30.0,
)


def restarts(random: float = 0.0) -> Restarts:
    return Restarts(SPEC, lambda: random)


def test_pauses_double_until_the_breaker_opens() -> None:
    found = restarts()
    pauses = [found.died(float(now_s)) for now_s in range(4)]
    assert [pause.seconds for pause in pauses] == [0.1, 0.2, 0.4, 30.0]
    assert [pause.is_broken for pause in pauses] == [False, False, False, True]
    assert found.is_broken


def test_deaths_are_forgotten() -> None:
    found = restarts()
    assert [found.died(30.0 * count) for count in range(10)][-1] == Pause(0.2, is_broken=False)


def test_half_of_a_pause_is_chance() -> None:
    assert restarts(0.5).died(0.0).seconds == pytest.approx(0.075)
    assert restarts(0.999_999).died(0.0).seconds == pytest.approx(0.05, rel=1e-3)


def test_a_pause_does_not_grow_forever() -> None:
    found = Restarts(WorkerSpec(kind="executor", models=(), max_restarts=100), lambda: 0.0)
    assert max(found.died(count * 0.1).seconds for count in range(100)) == 10.0


def broken() -> Restarts:
    found = restarts()
    for now_s in range(4):
        found.died(float(now_s))
    return found


@pytest.mark.parametrize(("lived_s", "is_broken"), [(0.0, True), (59.9, True), (60.0, False)])
def test_a_trial_lasts_as_long_as_the_window(lived_s: float, is_broken: bool) -> None:  # noqa: FBT001
    found = broken()
    found.ready(1000.0)
    assert found.died(1000.0 + lived_s).is_broken is is_broken


def test_a_trial_that_does_not_even_start_fails() -> None:
    found = broken()
    assert found.died(1000.0) == Pause(30.0, is_broken=True)
    found.ready(2000.0)
    assert found.died(2060.0) == Pause(0.1, is_broken=False)
