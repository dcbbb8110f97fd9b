from __future__ import annotations

from typing import Any

from trioserve_tools.drill._drill import Finding, at_most, none_of
from trioserve_tools.drill._drills import DRILLS
from trioserve_tools.drill._scoreboard import (
    BROKEN,
    HELD,
    NOT_RUN,
    failed_row,
    finished_row,
    merged,
    parse,
    render,
)

MADE: dict[str, Any] = {"seed": 7, "date": "2026-01-02", "command": "python -m x --only y"}


def test_a_page_is_read_as_it_was_written() -> None:
    first, second, third, *_ = DRILLS
    rows = {
        first.name: finished_row(first, [none_of("lost", 0), Finding("runs", 3)], **MADE),
        second.name: finished_row(second, [none_of("lost", 1), at_most("a | b", 2, 1, "ms")], **MADE),
        third.name: failed_row(third, "OSError: | no\nmore", BROKEN, **MADE),
    }
    assert [rows[drill.name].verdict for drill in (first, second, third)] == [HELD, BROKEN, BROKEN]
    page = render(merged(DRILLS, {}, rows))
    again = parse(page)
    assert again[first.name] == rows[first.name]
    assert again[second.name] == rows[second.name]
    assert again[third.name].last_figure == "OSError: | no more"
    assert len(again) == len(DRILLS)
    assert render(merged(DRILLS, again, {})) == page


def test_new_rows_replace_old_ones_and_others_stay() -> None:
    first, second, *_ = DRILLS
    old = {drill.name: finished_row(drill, [none_of("lost", 1)], **MADE) for drill in (first, second)}
    new = {first.name: finished_row(first, [none_of("lost", 0)], **MADE)}
    verdicts = [row.verdict for row in merged(DRILLS, old, new)]
    assert verdicts == [HELD, BROKEN, *[NOT_RUN] * (len(DRILLS) - 2)]
