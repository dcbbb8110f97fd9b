"""Programs that run beside a drill, in processes of their own, and say what they felt when it is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

START_S: Final = 20.0
"""Longest that a program may take to begin and to end."""


@dataclass
class Beside:
    """A program that runs beside a drill."""

    line: str
    """What it has said at its beginning."""

    said: Any = None
    """What it has said at its end, from JSON; None if that was nothing."""


@asynccontextmanager
async def beside(module: str, *arguments: str) -> AsyncIterator[Beside]:
    """Runs a program from before the context begins until it ends.

    The program prints a line when it has begun, ends when its standard input is closed, and may then print JSON.

    Args:
        module: Run by `python -m`.
        *arguments: Of the program.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", module, *arguments]
    process = await trio.lowlevel.open_process(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("a process without the pipes that were asked for: this is a bug")
    try:
        with trio.fail_after(START_S):
            line = await process.stdout.receive_some()
            while b"\n" not in line and (more := await process.stdout.receive_some()):
                line += more
        running = Beside(line.decode().strip())
        yield running
        await process.stdin.aclose()
        with trio.fail_after(START_S):
            said = b"".join([chunk async for chunk in process.stdout])
            running.said = json.loads(said) if said else None
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(START_S, shield=True):
                await process.wait()
        with trio.move_on_after(START_S, shield=True):
            await process.stdin.aclose()
            await process.stdout.aclose()
