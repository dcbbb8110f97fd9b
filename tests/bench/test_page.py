from __future__ import annotations

from collections.abc import Callable

import pytest

from trioserve_tools.bench._figures import Figure, PartResult
from trioserve_tools.bench._measure import Sample, Spread
from trioserve_tools.bench._page import BEGIN, END, updated
from trioserve_tools.targets import Target

MADE = {"date": "2026-01-02", "machine": "2 CPUs", "length": "--seconds 3"}


def part(title: str, *values: float, rounds: dict[str, list[Sample]] | None = None) -> PartResult:
    spread = Spread(values) if values else None
    return PartResult("p", "a load", [Figure(title, "x", Target(">=", 2), spread)], rounds or {})


def test_measured_rows_are_renewed_and_others_stay(sample: Callable[..., Sample]) -> None:
    page = f"before\n{BEGIN}{END}after\n"
    page = updated(page, [part("a", 1.0), part("b", 3.0, 5.0, rounds={"ours": [sample()]})], **MADE)
    page = updated(page, [part("a", 2.5), part("b"), part("c")], **(MADE | {"date": "2026-01-03"}))
    assert page.startswith(f"before\n{BEGIN}| figure |")
    assert page.endswith(f"{END}after\n")
    first, second = page.split("\n")[4:6]
    command = "`python -m trioserve_tools.bench --only p --seconds 3`"
    assert first == f"| a | 2.5 x | 2.5 to 2.5 | >= 2 x | met | 2026-01-03 | 2 CPUs | {command} |"
    busy = "2 CPUs, others 10% of it, stolen 0%"
    assert second == f"| b | 4 x | 3 to 5 | >= 2 x | met | 2026-01-02 | {busy} | {command} |"


def test_a_page_without_its_marks() -> None:
    with pytest.raises(ValueError, match="no marks"):
        updated("before", [part("a", 1.0)], **MADE)
