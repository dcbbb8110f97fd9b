from __future__ import annotations

from trioserve_tools.drill._drill import Field, Finding, at_most, exactly, none_of, options
from trioserve_tools.targets import Target


def make(name: str = "a", seed: int = 1, *, quick: bool = False) -> Field:
    return Field(3, seed, name, quick, lambda text: None, None)  # type: ignore[arg-type]


def test_findings_are_judged_and_told() -> None:
    assert none_of("lost", 0).held
    assert not none_of("lost", 1).held
    assert exactly("runs", 5, 5).held
    assert not exactly("runs", 4, 5).held
    assert not at_most("p99", float("nan"), 1, "ms").held
    told = at_most("p99", 0.5, 1, "ms")
    assert (str(told), told.promise) == ("p99 0.5 ms", "p99 <= 1 ms")
    only_told = Finding("requests", 12_345.0)
    assert (str(only_told), only_told.promise, only_told.held) == ("requests 12,345", "", True)


def test_chance_depends_on_seed_and_name_alone() -> None:
    draws = [make(*which).rng().random() for which in (("a", 1), ("a", 1), ("b", 1), ("a", 2))]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_the_short_form_does_not_judge_times() -> None:
    assert make().timing("p99", 2, 1, "ms").target == Target("<=", 1)
    assert make(quick=True).timing("p99", 2, 1, "ms").target is None


def test_settings_are_options() -> None:
    assert options("a.b=1", "c=2") == ["--set", "a.b=1", "--set", "c=2"]
