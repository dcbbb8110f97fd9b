from __future__ import annotations

import json
from collections.abc import Callable

from trioserve_tools.bench._figures import Figure, PartResult
from trioserve_tools.bench._measure import Sample, Spread
from trioserve_tools.bench._report import aligned, environment, figures_report, heading, part_report, record
from trioserve_tools.bench._scenarios import Setting
from trioserve_tools.targets import Target

FIGURES = [
    Figure("a ratio", "x", Target(">=", 2), Spread([2.5, 3.0, 2.75])),
    Figure("a difference", "", Target("<=", 1e-6), Spread([2e-6])),
    Figure("a peer's", "x", Target(">=", 2), reason="it is not there"),
]


def test_figures_with_their_verdicts() -> None:
    head, met, missed, absent = figures_report(FIGURES).splitlines()
    assert head.split() == ["figure", "median", "range", "target"]
    assert met.split() == ["a", "ratio", "2.75", "x", "2.5", "to", "3", ">=", "2", "x", "met"]
    assert missed.split()[-1] == "MISSED"
    assert "2.0e-06" in missed
    assert absent.endswith("not measured: it is not there")


def test_a_part_says_how_busy_the_machine_was(sample: Callable[..., Sample]) -> None:
    rounds = {
        "ours": [sample(1000.0), sample(3000.0)],
        "theirs": [sample(500.0, workers_us=0.0), sample(500.0, workers_us=0.0)],
    }
    text = part_report(PartResult("p", "a load", [], rounds, {"a fact": "a text"}))
    title, _, ours, theirs, noise, fact = text.splitlines()
    assert title == "a load"
    assert "2,000 (1,000 to 3,000)" in ours
    assert "12 (front 8, workers 4)" in ours
    assert "front" not in theirs
    assert "others used 10% of the machine" in noise
    assert fact == "  a fact: a text"


def test_the_record_holds_every_sample(sample: Callable[..., Sample], setting: Setting) -> None:
    part = PartResult("p", "a load", FIGURES, {"ours": [sample(1000.0)]}, {"fact": "text"})
    facts = environment(setting)
    made = json.loads(json.dumps(record([part], facts, date="2026-01-02", command="bench")))
    assert made["samples"]["p"]["ours"][0]["per_s"] == 1000.0
    assert [figure["met"] for figure in made["figures"]] == [True, False, None]
    assert made["facts"] == {"p": {"fact": "text"}}
    assert made["environment"]["rounds"] == 1
    assert "2026-01-02" in heading(facts, "2026-01-02")


def test_columns_are_aligned() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["  a    bb", "  ccc   d"]
