"""A drill's server, started once for all tests of this room."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from trioserve_tools.drill._drill import QUICK_OPTIONS, SERVED, Field, options
from trioserve_tools.server_process import ServerProcess, server_process


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets other processes import what this one can."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
async def server(importable: None) -> AsyncIterator[ServerProcess]:
    """A server of the drills' models."""
    with trio.fail_after(60):
        async with server_process(SERVED, *options(*QUICK_OPTIONS)) as running:
            yield running
            await running.end()


@pytest.fixture
def field() -> Callable[..., Field]:
    """Makes what a drill is given."""

    def make(server: Any, count: int = 3, name: str = "a drill") -> Field:
        return Field(count, 1, name, True, lambda text: None, server)

    return make
