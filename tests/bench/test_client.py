from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import trio

from trioserve_tools import compiled
from trioserve_tools.bench import _client
from trioserve_tools.bench._client import LoadClient, LoadFailed, LoadRecord, LoadShape, load_client
from trioserve_tools.bench._plan import fixed_plan

SHAPE = LoadShape(1, 1, 0.05, 0.01)


def test_python_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_client("auto", tmp_path).language == "Python"
    with pytest.raises(LoadFailed, match="no C compiler"):
        load_client("c", tmp_path)


def test_python_where_the_compiler_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("false",))
    assert load_client("auto", tmp_path).language == "Python"
    with pytest.raises(LoadFailed, match="false failed"):
        load_client("c", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, compiled.COMPILERS)), reason="no C compiler")
def test_the_program_is_compiled_once(tmp_path: Path) -> None:
    first = load_client("auto", tmp_path)
    (program,) = tmp_path.iterdir()
    made = program.stat().st_mtime_ns
    assert load_client("c", tmp_path) == first
    assert first.language == "C"
    assert program.stat().st_mtime_ns == made


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, compiled.COMPILERS)), reason="no C compiler")
def test_another_header_makes_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, header = tmp_path / "answer.c", tmp_path / "program.h"
    source.write_text('#include "program.h"\nint main(void) { return ANSWER; }\n', encoding="utf-8")
    monkeypatch.setattr(compiled, "SHARED", header)
    for answer in (1, 2, 1):
        header.write_text(f"#define ANSWER {answer}\n", encoding="utf-8")
        program = compiled.compiled(source, tmp_path / "programs")
        assert subprocess.run([program], check=False).returncode == answer
    assert len(list((tmp_path / "programs").iterdir())) == 2


def record(answers: int) -> str:
    fields = '"cpu_s": 0.1, "p50_us": 1, "p90_us": 2, "p99_us": 3, "max_us": 4'
    return f'{{"answers": {answers}, "seconds": 2.0, "answers_all": 9, {fields}}}'


def saying(text: str, *, status: int = 0) -> LoadClient:
    return LoadClient("sh", ("sh", "-c", f"echo '{text}'; echo oops >&2; exit {status}"))


async def test_what_the_client_says_is_read(tmp_path: Path) -> None:
    fixed_plan("w1").write(tmp_path / "plan")
    said = await saying(record(8)).run(1, tmp_path / "plan", SHAPE)
    assert said == LoadRecord(8, 2.0, 9, 0.1, 1, 2, 3, 4)
    assert said.per_s == 4


async def test_void_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadFailed, match="status 3: oops"):
        await saying("", status=3).run(1, tmp_path, SHAPE)
    with pytest.raises(LoadFailed, match="no answer within"):
        await saying(record(0)).run(1, tmp_path, SHAPE)
    monkeypatch.setattr(_client, "GRACE_S", 0.0)
    with pytest.raises(LoadFailed, match="did not end"), trio.fail_after(10):
        await LoadClient("sh", ("sh", "-c", "sleep 30")).run(1, tmp_path, SHAPE)
