"""Files of what was learnt: as they went they come back, and whatever else is there is refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from trioserve.config import BatchingConfig, ModelConfig
from trioserve.server import _learnt as module
from trioserve.server._learnt import (
    MAX_FILE_NBYTES,
    LearntFile,
    LearntStore,
    device_name,
    model_key,
    open_store,
)

KEY = "ab" * 20
STATE = {"version": 1, "k": 2.5, "sizes": [1, 2]}


def content(key: str = KEY, **changes: object) -> LearntFile:
    return msgspec.structs.replace(LearntFile("m", "a processor", key, STATE), **changes)


@pytest.fixture
def store(tmp_path: Path) -> LearntStore:
    return LearntStore(tmp_path / "state")


def files(store: LearntStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def test_what_was_saved_is_loaded(store: LearntStore) -> None:
    assert store.load(KEY, "m") is None
    for state in ({"k": 1}, STATE):
        store.save(content(state=state))
    assert store.load(KEY, "m") == STATE
    assert files(store) == [f"{KEY}.learnt.json"], "no temporary file is left"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"model":"m","device":"d","key":"ab","state":{}}',
        msgspec.json.encode(content(key="cd" * 20)),
        msgspec.json.encode(content())[:-5],
        msgspec.json.encode(content()) + b" " * MAX_FILE_NBYTES,
    ],
)
def test_what_is_no_such_file_is_refused_with_a_line(
    store: LearntStore, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    store.directory.mkdir()
    (store.directory / f"{KEY}.learnt.json").write_bytes(data)
    assert store.load(KEY, "m") is None
    assert "learnt_model_refused" in capsys.readouterr().out
    store.save(content())
    assert store.load(KEY, "m") == STATE


def test_a_folder_in_its_place_is_refused(store: LearntStore, capsys: pytest.CaptureFixture[str]) -> None:
    (store.directory / f"{KEY}.learnt.json").mkdir(parents=True)
    assert store.load(KEY, "m") is None
    store.save(content())
    assert "learnt_model_not_saved" in capsys.readouterr().out
    assert files(store) == [f"{KEY}.learnt.json"]


def test_what_is_too_large_is_not_written(store: LearntStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(content(state={"x": "x" * MAX_FILE_NBYTES}))
    assert "learnt_model_not_saved" in capsys.readouterr().out
    assert store.load(KEY, "m") is None


def test_the_oldest_files_go(store: LearntStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    store.directory.mkdir()
    (store.directory / "README").write_text("not ours")
    half_written = store.directory / f"{KEY}.learnt.json.abc"
    half_written.write_text("{")
    os.utime(half_written, (1, 1))
    for number in range(5):
        store.save(content(f"{number:040}"))
        path = store.directory / f"{number:040}.learnt.json"
        os.utime(path, (number + 2, number + 2))
    assert files(store) == [*(f"{number:040}.learnt.json" for number in (2, 3, 4)), "README"]


def test_where_files_are_kept(tmp_path: Path) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    for state_dir, environ, expected in (
        ("", {"HOME": str(home)}, None),
        ("auto", {}, None),
        ("auto", {"HOME": "relative"}, None),
        ("auto", {"HOME": str(home)}, home / ".cache" / "trioserve"),
        ("auto", {"HOME": str(home), "XDG_CACHE_HOME": "relative"}, home / ".cache" / "trioserve"),
        ("auto", {"HOME": str(home), "XDG_CACHE_HOME": str(cache)}, cache / "trioserve"),
        (str(tmp_path / "own"), {}, tmp_path / "own"),
    ):
        found = open_store(state_dir, environ)
        assert (found and found.directory) == expected


def test_a_folder_that_cannot_be_had_switches_it_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert open_store(str(tmp_path / "file")) is None
    assert open_store("auto", {"XDG_CACHE_HOME": str(tmp_path / "file")}) is None
    assert capsys.readouterr().out.count("learnt_models_not_kept") == 2


def test_the_key_is_of_the_file_and_of_what_decides_how_long_it_takes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    config = ModelConfig(name="m", backend="python", file="a.py", directory=str(tmp_path))
    key = model_key(config, "d")
    replace = msgspec.structs.replace
    same = [replace(config, name="other"), replace(config, slots=7), replace(config, default_deadline_ms=1)]
    assert {model_key(other, "d") for other in same} == {key}
    different = [
        replace(config, file="b.py"),
        replace(config, args={"layers": 2}),
        replace(config, class_name="B"),
        replace(config, batching=BatchingConfig(max_rows=8)),
        replace(config, sha256="0" * 64),
    ]
    keys = {model_key(other, "d") for other in different} | {model_key(config, "e")}
    assert len(keys) == 6
    assert key not in keys
    assert device_name(3).endswith(", 3 threads")
    assert device_name(1) != device_name(2)
