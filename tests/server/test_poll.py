"""When a change of the repository counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from trioserve.server._contents import mark_of
from trioserve.server._poll import Settled, poll_repository
from trioserve.transport import ModelOrder


@pytest.mark.parametrize(
    ("looks", "acts"),
    [
        ("aaaa", []),
        ("abbb", [2]),
        ("abcdd", [4]),
        ("abababb", [6]),
        ("abbaa", [2, 4]),
        ("abbbb", [2]),
        ("abbcc", [2, 4]),
    ],
)
def test_a_change_counts_when_it_was_seen_twice(looks: str, acts: list[int]) -> None:
    settled = Settled("a")
    assert [number for number, mark in enumerate(looks) if settled.look(mark)] == acts


async def test_it_orders_what_the_repository_comes_to(
    autojump_clock: object, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["old", "old", "half", "new", "new", "new"])

    async def look(*_: object) -> str:
        await trio.lowlevel.checkpoint()
        return next(looks, "new")

    monkeypatch.setattr(trio.to_thread, "run_sync", look)
    orders: list[tuple[float, str]] = []
    began_s = trio.current_time()

    def submit(order: ModelOrder) -> None:
        orders.append((trio.current_time() - began_s, str(order)))

    nursery.start_soon(poll_repository, "models", 10.0, submit)
    await trio.sleep(100)
    assert orders == [(40.0, "reload of all models")]


def test_a_mark_changes_with_the_files_and_not_with_what_python_leaves(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.py").write_text("1")
    marks = [mark_of(tmp_path)]
    (tmp_path / "m" / "__pycache__").mkdir()
    (tmp_path / "m" / "__pycache__" / "model.pyc").write_text("compiled")
    (tmp_path / ".model.py.swp").write_text("an editor's")
    assert mark_of(tmp_path) == marks[0]
    for change in (
        lambda: (tmp_path / "m" / "model.py").write_text("22"),
        lambda: os.utime(tmp_path / "m" / "model.py", (1, 1)),
        lambda: (tmp_path / "m" / "model.py").rename(tmp_path / "m" / "other.py"),
        (tmp_path / "m" / "other.py").unlink,
    ):
        change()
        marks.append(mark_of(tmp_path))
    assert len(set(marks)) == len(marks)
