"""The examples do what they say, against real servers."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from trioserve_tools.server_process import running_server

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

EXAMPLES = Path(__file__).parents[2] / "examples"


async def output_of(example: str, url: str) -> str:
    """Runs an example against a server and returns what it prints."""
    done = await trio.run_process(
        [sys.executable, str(EXAMPLES / example), url],
        capture_stdout=True,
        stdin=subprocess.DEVNULL,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    return done.stdout.decode()


async def test_scale_and_its_client() -> None:
    with trio.fail_after(60):
        async with running_server(EXAMPLES / "scale.py") as (url, _):
            output = await output_of("scale_client.py", url)
    assert output == "one: 0.0 2.0 4.0 6.0 ...\na thousand: (1000, 64) all right: True\n"


async def test_similar_texts(minilm_repository: Path) -> None:
    with trio.fail_after(60):
        async with running_server(minilm_repository) as (url, _):
            output = await output_of("similar_texts.py", url)
    assert [line.split()[0] for line in output.splitlines()] == ["0.6660", "0.1046", "0.1411"]


def test_scale_serves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[object, int]] = []
    monkeypatch.setattr("trioserve.run", lambda model, port: served.append((model, port)), raising=False)
    runpy.run_path(str(EXAMPLES / "scale.py"), run_name="__main__")
    [(model, port)] = served
    assert (type(model).__name__, port) == ("Scale", 7001)
