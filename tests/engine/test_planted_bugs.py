"""The planted mistakes of `tools/dev/planted_bugs.py` still fit the sources, so that the check means something."""

from __future__ import annotations

import pytest

from dev.planted_bugs import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_in_one_place(bug: Bug) -> None:
    source = (ROOT / "trioserve" / bug.file).read_text(encoding="utf-8")
    assert source.count(bug.right) == 1
    compile(source.replace(bug.right, bug.wrong), bug.file, "exec")


def test_no_bug_is_planted_twice() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
