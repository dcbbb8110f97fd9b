"""The load client as a command: in C where there is a compiler, else in Python."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import trio

from trioserve_tools.compiled import NoProgram, compiled

SOURCE: Final = Path(__file__).parent / "load.c"
GRACE_S: Final = 60.0
"""Longest that a run may take beyond its seconds."""

Choice = Literal["auto", "c", "python"]


class LoadFailed(Exception):
    """A run ended without a figure: a wrong answer, none at all, or no client."""


@dataclass(frozen=True, slots=True)
class LoadShape:
    """How much is asked for at a time, and for how long."""

    connections: int
    outstanding: int
    """Requests that are unanswered on each connection."""

    seconds: float
    warmup_s: float


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """What a load client says after a run."""

    answers: int
    """In the measured seconds; all of them checked."""

    seconds: float
    answers_all: int
    """With those during the warm-up and at the end."""

    cpu_s: float
    """CPU time of the client itself in the measured seconds."""

    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


@dataclass(frozen=True, slots=True)
class LoadClient:
    """A load client that can be run."""

    language: str
    command: tuple[str, ...]

    async def run(self, port: int, plan: Path, shape: LoadShape) -> LoadRecord:
        """Loads a server.

        Args:
            port: Of the server, on this machine.
            plan: A file written by `Plan.write`.
            shape: How.

        Raises:
            LoadFailed: The run is void.
        """
        command = [*self.command, "--port", str(port), "--plan", str(plan)]
        command += ["--connections", str(shape.connections), "--outstanding", str(shape.outstanding)]
        command += ["--seconds", str(shape.seconds), "--warmup", str(shape.warmup_s)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with trio.move_on_after(shape.warmup_s + shape.seconds + GRACE_S):
            done = await trio.run_process(
                command, env=env, capture_stdout=True, capture_stderr=True, check=False
            )
            if done.returncode != 0:
                message = done.stderr.decode(errors="replace").strip()
                raise LoadFailed(f"the load client ended with status {done.returncode}: {message}")
            record = LoadRecord(**json.loads(done.stdout))
            if not record.answers:
                raise LoadFailed(f"no answer within {shape.seconds} s")
            return record
        raise LoadFailed("the load client did not end")


def load_client(choice: Choice, cache: Path) -> LoadClient:
    """Finds or makes a load client.

    Args:
        choice: Its language; `auto` is C where it can be compiled.
        cache: Folder for the compiled program; made if needed.

    Raises:
        LoadFailed: `c` was asked for and cannot be had.
    """
    in_python = LoadClient("Python", (sys.executable, "-m", "trioserve_tools.bench.load"))
    if choice == "python":
        return in_python
    try:
        return LoadClient("C", (str(compiled(SOURCE, cache)),))
    except NoProgram as error:
        if choice == "c":
            raise LoadFailed(str(error)) from None
        return in_python
