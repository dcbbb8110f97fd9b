"""`python -m trioserve.backends.describe FILE CLASS ARGS`: what a Python model's class says of itself.

CLASS may be empty for the only one; ARGS is a JSON object. The answer is JSON on standard output.

A program and not a function: importing the file runs its author's code, which belongs in a process that may
die of it. What that code prints goes to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from trioserve.backends._base import LoadError
from trioserve.backends._model import Model, Tensor, class_fault, model_name
from trioserve.backends._user_code import find_class, import_file


def main(argv: list[str]) -> int:
    """Prints `{"table": ...}` or `{"key": ..., "error": ...}`; the latter is an answer too, so the status is 0."""
    path, class_name, args = Path(argv[1]), argv[2], json.loads(argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with out:
        out.write(_answer(path, class_name, args))
    return 0


def _answer(path: Path, class_name: str, args: dict[str, Any]) -> str:
    try:
        cls = find_class(import_file(path), class_name, path)
        if fault := class_fault(cls):
            return json.dumps({"error": fault})
        if misfit := _misfit(cls, args):
            return json.dumps({"key": "args", "error": misfit})
        return json.dumps({"table": class_table(cls)})
    except LoadError as error:
        message = str(error)
    except SystemExit as error:
        message = f"a file that ends the process when it is imported, with status {error.code}"
    except Exception as error:  # noqa: BLE001  the author's code may raise anything, and is told where
        message = f"{type(error).__name__}: {error}{_line(error, path)}"
    return json.dumps({"error": message})


def class_table(cls: type[Model]) -> dict[str, Any]:
    """What a class says, by key of a `model.toml`."""
    return {
        "name": model_name(cls),
        "version": cls.version,
        "class": cls.__qualname__,
        "slots": cls.slots,
        "default_deadline_ms": cls.default_deadline_ms,
        "watchdog_s": cls.watchdog_s,
        "threads": cls.threads,
        "inputs": {name: _tensor(tensor) for name, tensor in cls.inputs.items()},
        "outputs": {name: _tensor(tensor) for name, tensor in cls.outputs.items()},
        "batching": {"max_rows": cls.max_batch_rows, "window_ms": cls.window_ms},
    }


def _misfit(cls: type[Model], args: dict[str, Any]) -> str:
    """Why the class cannot be made with these arguments, or nothing."""
    try:
        inspect.signature(cls.__init__).bind(None, **args)
    except TypeError as error:
        return f"{cls.__qualname__}: {error}"
    return ""


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "dims": list(tensor.dims)}


def _line(error: Exception, path: Path) -> str:
    """Where in the file it happened, if it happened there."""
    if isinstance(error, SyntaxError):
        return ""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f" (line {lines[-1]})" if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv))
