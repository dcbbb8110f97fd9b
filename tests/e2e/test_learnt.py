"""What a server has learnt of a model is known to the next one, and nothing that is wrong with it stops either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.harness import ServerProcess, infer, row, serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def use(server: ServerProcess, requests: int = 50) -> None:
    with server.connect() as wire:
        wire.bind("slow")
        for rid in range(1, requests + 1):
            wire.send(infer(rid, row(1)))
            wire.result(rid)


def test_from_one_start_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with serving("slow", state_dir=str(folder)) as server:
        use(server)
        learnt = server.statistics()["models"][0]["service"]
    [file] = folder.iterdir()
    content = json.loads(file.read_text())
    assert content["model"] == "slow"
    assert content["state"]["batches"] == learnt["batches"] > 0
    # As by a server whose sleeps are those of the warm-up: this one's were a hundred times as long.
    sizes = [size["units"] for size in learnt["sizes"]]
    with serving("slow", state_dir=str(folder)) as server:
        warm = server.statistics()["models"][0]["service"]
        assert [size["units"] for size in warm["sizes"]] == sizes
        assert server.events("learnt_model_ignored") or server.events("learnt_model_used")
        content["state"] |= {
            "mean_ns": [size["mean_ns"] for size in warm["sizes"]],
            "shape_ns": [size["mean_ns"] for size in warm["sizes"]],
            "k": 4.5,
        }
    file.write_text(json.dumps(content))
    with serving("slow", state_dir=str(folder)) as server:
        used = server.events("learnt_model_used")
        ignored = server.events("learnt_model_ignored")
        assert len(used) + len(ignored) == 1
        if used:
            assert server.statistics()["models"][0]["service"]["quantile_k"] == 4.5


@pytest.mark.parametrize("bad", ["", "nonsense", '{"model": 1}'])
def test_a_bad_file_and_a_bad_folder_are_no_failure(tmp_path: Path, bad: str) -> None:
    folder = tmp_path / "state"
    with serving("slow", state_dir=str(folder)) as server:
        use(server, 3)
    [file] = folder.iterdir()
    file.write_text(bad)
    with serving("slow", state_dir=str(folder)) as server:
        assert server.events("learnt_model_refused")
        use(server, 3)
    assert json.loads(file.read_text())["model"] == "slow"
    with serving("slow", state_dir=str(file)) as server:
        assert server.events("learnt_models_not_kept")
        use(server, 3)
