"""What the class of a Python model says of itself, without running its code here.

Importing a user's file runs it: it may take gigabytes, patch the interpreter or end it. So a process of its
own imports it, looks at the class and prints what that says as JSON; it is gone before the server starts. An
executor imports the file again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec

from trioserve.config._model import ModelConfig
from trioserve.config._problem import Problem, shown
from trioserve_protocol import DType

DESCRIBE_TIMEOUT_S = 60.0
"""Longest that importing a model's file may take, in seconds."""

NICENESS = 10
"""Of 19, for the process that looks at a model's file."""

_PROGRAM = "trioserve.backends.describe"
"""Named and not imported: that room is above this one, and only the other process needs it."""


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the describing process prints."""

    table: dict[str, Any] = {}
    """Values by key of `ModelConfig`, as a `model.toml` would have them."""

    key: str = ""
    """The key that the error is about, if it is not the file."""

    error: str = ""
    """What is wrong with the file, in a line; then there is no table."""


def _run_aside(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Runs a program at a low priority: this process may be a server that serves meanwhile.

    Raises:
        subprocess.TimeoutExpired: It took too long, and was killed.
    """
    with subprocess.Popen(  # noqa: S603  the command is ours, the file is an argument of it
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        with suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        try:
            output, errors = process.communicate(timeout=DESCRIBE_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def class_table(config: ModelConfig, file: str) -> tuple[dict[str, Any], list[Problem]]:
    """Asks the class of a Python model for what it says: name, version, tensors, rows of a batch and so on.

    Blocks for as long as importing the model's file takes, a minute at most.

    Args:
        config: A configuration whose backend is `python` and whose file exists.
        file: Where the configuration came from, for the problems.

    Returns:
        The values by key of `ModelConfig` as a `model.toml` would have them, and no problem; or an empty
        table and one.
    """
    args = msgspec.json.encode(config.args).decode()
    command = [sys.executable, "-m", _PROGRAM, str(config.file_path), config.class_name, args]
    # Imports must find there what they find here, however this process came by its path.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        done = _run_aside(command, env)
    except subprocess.TimeoutExpired:
        return {}, [_bad_file(config, file, f"an import of more than {DESCRIBE_TIMEOUT_S:.0f} s")]
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.DecodeError:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        answer = _Answer(error=f"a process that ended with status {done.returncode}: {last_line}")
    if answer.key:
        hint = (
            "a model that needs arguments needs a model.toml with a table of them"
            if file.endswith(".py")
            else ""
        )
        expected = "the arguments that the class's constructor takes"
        return {}, [Problem(file, answer.key, expected, answer.error, hint)]
    return answer.table, [_bad_file(config, file, answer.error)] if answer.error else []


def signature_clashes(configured: dict[str, Any], said: dict[str, Any], file: str) -> list[Problem]:
    """Where tensors stand both in a file and in a class, they must be the same.

    Args:
        configured: The parsed file.
        said: What the class says, as `class_table` returns it.
        file: Where the configuration came from, for the problems.
    """
    return [
        Problem(file, group, f"what the class says: {_tensors(said[group])}", _tensors(configured[group]))
        for group in ("inputs", "outputs")
        if configured.get(group) and said.get(group) and _plain(configured[group]) != _plain(said[group])
    ]


def _plain(group: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    """Tensors in order, with one name a datatype; unknown ones are complained about elsewhere."""
    return [(name, _label(tensor["dtype"]), tensor["dims"]) for name, tensor in group.items()]


def _label(dtype: str) -> str:
    try:
        return DType.parse(dtype).label
    except ValueError:
        return dtype


def _tensors(group: dict[str, Any]) -> str:
    return ", ".join(f"{name} {tensor['dtype']} {shown(tensor['dims'])}" for name, tensor in group.items())


def _bad_file(config: ModelConfig, file: str, given: str) -> Problem:
    key = "" if file.endswith(".py") else "class" if config.class_name else "file"
    hint = "a file beside the models that is none of them gets a name that starts with '_'" if not key else ""
    return Problem(file, key, "Python source that defines a trioserve.Model", given, hint)
