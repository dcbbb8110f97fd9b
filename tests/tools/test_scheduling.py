"""The tables of the scheduling page: that they can be written, and what the figures in them must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioserve_tools.scheduling.__main__ import main
from trioserve_tools.scheduling._closed_form import waiting
from trioserve_tools.scheduling._models import CASES
from trioserve_tools.scheduling._overload import highest_load, overload
from trioserve_tools.scheduling._page import marks, updated
from trioserve_tools.scheduling._tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "discussion" / "scheduling.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLES if name != "windows"])
def test_a_table_is_printed_and_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n" + "old\n".join(marks(name)) + "after\n")
    assert main(["--short", "--only", name, "--page", str(page)]) == 0
    table = capsys.readouterr().out.split("\n\n")[1].strip()
    assert table.startswith("| ")
    assert page.read_text() == "before\n" + f"{table}\n".join(marks(name)) + "after\n"


def test_the_page_holds_every_table() -> None:
    page = PAGE.read_text()
    for name in TABLES:
        assert updated(page, name, "| new |\n") != page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks"):
        updated("nothing", "figures", "")


@pytest.mark.slow
def test_waiting_takes_as_long_as_is_known() -> None:
    for one in waiting(requests=10_000):
        assert one.greedy == pytest.approx(one.expected_greedy, rel=0.02)
        assert one.waiting == pytest.approx(one.expected_waiting, rel=0.05, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("load", [2, 10])
def test_overload_costs_what_the_design_promises(case, load: float) -> None:
    """Within two points, and what is promised to nobody is not broken."""
    found = overload(case, load, requests=4_000)
    promised = case.at_2x if load == 2 else case.at_10x
    assert found.goodput >= promised - 0.02
    assert found.late <= 0.01
    assert found.dropped <= 0.0104
    assert found.p99_ms <= case.sla_ms
    if case.sla_ms >= 5 * case.service.mean_ns(32) / 1e6:
        assert found.left_room <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_almost_all_of_the_capacity_may_be_offered(case) -> None:
    assert highest_load(case, requests=8_000) >= case.highest - 0.02
