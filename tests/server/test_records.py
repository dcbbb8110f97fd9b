"""Records of traffic are kept from one start to the next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trioserve.observability import TrafficRecord, TrafficRecorder
from trioserve.server._records import prepare_records, save_records


def lane(requests: int) -> Any:
    """A model of which so many requests were recorded."""
    recorder = TrafficRecorder(100)
    if requests:
        recorder.offered(0, requests, 1)
    record = recorder.record("scale", {})
    config = SimpleNamespace(name="scale", version=1)
    return SimpleNamespace(config=config, witness=SimpleNamespace(record=lambda: record))


def saved(directory: Path) -> dict[str, int]:
    return {path.name: len(TrafficRecord.load(path).arrivals) for path in sorted(directory.iterdir())}


def test_a_record_takes_the_first_name_that_is_free(tmp_path: Path) -> None:
    for requests in (3, 4, 5):
        save_records([lane(requests)], str(tmp_path))
    assert saved(tmp_path) == {"scale-1.npz": 3, "scale-1-2.npz": 4, "scale-1-3.npz": 5}
    (tmp_path / "scale-1-2.npz").unlink()
    save_records([lane(6)], str(tmp_path))
    assert saved(tmp_path)["scale-1-2.npz"] == 6


def test_an_empty_record_is_only_written_where_there_is_none(tmp_path: Path) -> None:
    save_records([lane(0)], str(tmp_path))
    save_records([lane(0)], str(tmp_path))
    assert saved(tmp_path) == {"scale-1.npz": 0}
    save_records([lane(2)], str(tmp_path))
    save_records([lane(0)], str(tmp_path))
    assert saved(tmp_path) == {"scale-1.npz": 0, "scale-1-2.npz": 2}


def test_a_record_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TrafficRecord, "save", full)
    save_records([lane(2)], str(tmp_path))
    save_records([lane(2)], str(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_is_named_with_its_key(tmp_path: Path) -> None:
    prepare_records("")
    prepare_records(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(OSError, match="record: expected a directory, got '/proc/nope': No such file"):
        prepare_records("/proc/nope")
