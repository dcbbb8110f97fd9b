"""An executor that is busy until a test says that it is free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.harness import ServerProcess, infer, wait_for


def hold(rid: int, gate: Path, *, timeout_us: int = 0, handle: int = 1) -> bytes:
    """A request of the model `held`, whose batch does not end before the file exists."""
    path = os.fsencode(gate).ljust(256, b"\0")
    return infer(rid, path, timeout_us=timeout_us, handle=handle)


@contextmanager
def executor_held(server: ServerProcess, gate: Path) -> Iterator[Path]:
    """The executor is busy in the block, until the gate is touched or the block ends.

    Args:
        server: serves `held`.
        gate: a file that does not exist.
    """
    with server.connect() as wire:
        wire.bind("held")
        wire.send(hold(1, gate))
        wait_for(lambda: server.statistics()["workers"][0]["in_flight"])
        try:
            yield gate
        finally:
            gate.touch()
        wire.result(1)
