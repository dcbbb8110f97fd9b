import pytest

from trioserve_tools.bench._figures import Figure
from trioserve_tools.bench._measure import Spread
from trioserve_tools.targets import Target


@pytest.mark.parametrize(("values", "met"), [([1.9, 2.0, 5.0], True), ([1.0, 1.9, 5.0], False)])
def test_the_median_is_judged(values: list[float], met: object) -> None:
    figure = Figure("x", "x", Target(">=", 2), Spread(values))
    assert figure.met is met
    assert figure.record()["median"] == sorted(values)[1]
    assert figure.record()["rounds"] == values


def test_what_is_not_measured_is_neither_met_nor_missed() -> None:
    figure = Figure("x", "x", Target(">=", 2), reason="no peer")
    assert figure.met is None
    assert figure.record() == {
        "title": "x",
        "unit": "x",
        "target": ">= 2",
        "median": None,
        "rounds": [],
        "met": None,
        "reason": "no peer",
    }
