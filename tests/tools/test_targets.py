import pytest

from trioserve_tools.targets import Target, number


@pytest.mark.parametrize(
    ("target", "met", "missed"),
    [
        (Target(">=", 2), (2.0, 3.0), (1.9, float("nan"))),
        (Target("<=", 2), (2.0, 1.0), (2.1, float("nan"), float("inf"))),
        (Target("=", 2), (2.0,), (1.0, 3.0, float("nan"))),
    ],
)
def test_bounds(target: Target, met: tuple[float, ...], missed: tuple[float, ...]) -> None:
    assert all(map(target.met_by, met))
    assert not any(map(target.met_by, missed))


def test_words() -> None:
    assert str(Target("<=", 1e-6)) == "<= 1e-06"
    said = [number(value) for value in (0.0, 12_345.0, 123.4, 1.2345, 0.00042, float("inf"), float("nan"))]
    assert said == ["0", "12,345", "123", "1.23", "4.2e-04", "inf", "nan"]
