"""All drills in their short form, as `make drill` runs them in their long one."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from trioserve_tools.drill import __main__ as drill
from trioserve_tools.drill._drill import Drill, Field, Finding, NotRun, none_of
from trioserve_tools.drill._drills import DRILLS
from trioserve_tools.drill._scoreboard import BROKEN, HELD, parse
from trioserve_tools.process_figures import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


APART = ("overload-minilm", "mixed-lengths")
"""Need a model that is not in the checkout."""

LONG = ("overload-sleeper", "overload-minilm", "tenant-flood", "class-floods", "mixed-lengths")
GROUPS = [[name for name in drill.BY_NAME if name not in LONG], *([name] for name in LONG)]


@pytest.mark.parametrize("names", GROUPS, ids=["short", *LONG])
def test_every_drill_holds(names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "scoreboard.md"
    only = [word for name in names for word in ("--only", name)]
    status = drill.main(["--quick", "--quiet", *only, "--scoreboard", str(page)])
    said = capsys.readouterr().out
    assert status == 0, said
    rows = parse(page.read_text())
    assert set(rows) == set(drill.BY_NAME)
    held = {name for name in names if rows[name].verdict == HELD}
    assert set(names) - held <= set(APART), said
    assert all(rows[name].command.endswith("--quick`") for name in held)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert drill.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(DRILLS)


def replaced(monkeypatch: pytest.MonkeyPatch, run: object, name: str = "garbage") -> None:
    fake = Drill(name, "a fault", "nothing", 9, 2, run)  # type: ignore[arg-type]
    monkeypatch.setitem(drill.BY_NAME, name, fake)


def test_what_breaks_is_said_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pids: list[int] = []

    async def kills_its_server(field: Field) -> list[Finding]:
        pids.append(field.server.pid)
        field.server.process.kill()
        await field.server.process.wait()
        raise ExceptionGroup("", [ConnectionError("the server is gone")])

    async def goes_on_with_another(field: Field) -> list[Finding]:
        await trio.lowlevel.checkpoint()
        assert field.count == 5
        assert is_alive(field.server.pid)
        return [none_of("lost", 1)]

    async def cannot_be_run(field: Field) -> list[Finding]:
        await trio.lowlevel.checkpoint()
        raise ExceptionGroup("", [NotRun("not here")])

    replaced(monkeypatch, kills_its_server, "garbage")
    replaced(monkeypatch, goes_on_with_another, "oversize-length")
    replaced(monkeypatch, cannot_be_run, "parser-fuzz")
    page = tmp_path / "scoreboard.md"
    only = ["--only", "garbage", "--only", "oversize-length", "--only", "parser-fuzz"]
    assert drill.main([*only, "--count", "5", "--quiet", "--seed", "3", "--scoreboard", str(page)]) == 1
    rows = parse(page.read_text())
    assert rows["garbage"].last_figure == "ConnectionError: the server is gone"
    assert (rows["garbage"].verdict, rows["oversize-length"].verdict) == (BROKEN, BROKEN)
    assert rows["parser-fuzz"].verdict == "not run"
    assert rows["oversize-length"].command == (
        "`python -m trioserve_tools.drill --only oversize-length --seed 3 --count 5`"
    )
    assert "broken: garbage, oversize-length" in capsys.readouterr().out
    assert not is_alive(pids[0])
