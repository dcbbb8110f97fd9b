"""Samples as a measurement would give them, without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from trioserve_tools.bench._client import LoadClient, LoadRecord
from trioserve_tools.bench._measure import Sample
from trioserve_tools.bench._scenarios import Setting


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets other processes import what this one can."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """Makes a sample of so many answers a second."""

    def make(
        per_s: float = 1000.0, p50_us: float = 100.0, front_us: float = 8.0, workers_us: float = 4.0
    ) -> Sample:
        load = LoadRecord(int(per_s), 1.0, int(per_s), 0.25, p50_us, 2 * p50_us, 3 * p50_us, 4 * p50_us)
        return Sample(load, {"front": front_us, "workers": workers_us}, 0.1, 0.0, 1.5)

    return make


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """A setting that measures next to nothing."""
    client = LoadClient("none", ("false",))
    return Setting(client, 0.1, 1, "", tmp_path / "models", tmp_path / "wheels", lambda text: None)


@pytest.fixture
def bare_server() -> Callable[[str, int, int], AbstractContextManager[int]]:
    """Starts a baseline and gives its port."""

    @contextmanager
    def start(kind: str, request_nbytes: int, reply_nbytes: int) -> Iterator[int]:
        command = [sys.executable, "-m", "trioserve_tools.bench.baselines", kind]
        command += [str(request_nbytes), str(reply_nbytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield int(process.stdout.readline())
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(10) == 0

    return start
