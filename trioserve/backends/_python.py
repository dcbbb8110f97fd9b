"""Models written in Python: a `trioserve.Model` subclass in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trioserve.backends._base import Arrays, Backend, LoadContext, LoadError, OutputError, RunState
from trioserve.backends._files import verify_sha256
from trioserve.backends._signature import class_signature
from trioserve.backends._user_code import find_class, import_file

if TYPE_CHECKING:
    from trioserve.backends._model import Model
    from trioserve.config import ModelConfig


def load_class(config: ModelConfig) -> type[Model]:
    """Import the class of a Python model; the class is not instantiated.

    Raises:
        LoadError: There is no such file or class, or its hash is not the one configured.
        Exception: Whatever the file raises when imported.
    """
    path = config.file_path
    if not path.is_file():
        raise LoadError(f"{path}: no such file")
    verify_sha256(path, config.sha256)
    return find_class(import_file(path), config.class_name, path)


class PythonBackend(Backend):
    """Runs the user's class with numpy arrays."""

    def __init__(self) -> None:
        """Nothing is imported before `load`."""
        self._model: Model | None = None
        self._infer: Any = None
        self._run_state = RunState()
        self._input_names: tuple[str, ...] = ()
        self._output_names: tuple[str, ...] = ()

    def load(self, ctx: LoadContext) -> None:
        """Import the class, make it with the configured arguments, and call its `load`."""
        cls = load_class(ctx.config)
        signature = class_signature(cls, ctx.config)
        if signature != ctx.signature:
            raise LoadError(f"{ctx.name}: the class says {signature}, the server expects {ctx.signature}")
        try:
            model = cls(**ctx.config.args)
        except TypeError as error:
            raise LoadError(f"{ctx.name}: {cls.__name__}({', '.join(ctx.config.args)}): {error}") from error
        model.load(ctx)
        self._run_state = ctx.run_state
        self._model, self._infer = model, model.infer
        self._input_names = ctx.input_names
        self._output_names = tuple(spec.name for spec in signature.outputs)

    def infer(self, inputs: Arrays, out: Arrays) -> Arrays:  # noqa: ARG002  numpy functions make their own
        """Call the model's `infer` with one keyword argument an input."""
        result = self._infer(**dict(zip(self._input_names, inputs, strict=True)))
        if isinstance(result, np.ndarray):
            return (result,)
        if isinstance(result, tuple):
            return result
        if isinstance(result, dict):
            return self._by_name(result)
        raise OutputError(
            f"infer returned {type(result).__name__}; expected an array, a tuple or a dict of arrays"
        )

    def _by_name(self, result: dict[str, Any]) -> Arrays:
        if result.keys() != set(self._output_names):
            raise OutputError(f"infer returned {sorted(result)}; expected {sorted(self._output_names)}")
        return tuple(result[name] for name in self._output_names)

    def interrupt(self) -> None:
        """Python code cannot be stopped from outside; a model that wants to looks at `ctx.cancelled`."""
        self._run_state.cancelled = True

    def resume(self) -> None:
        """The next batch is waited for."""
        self._run_state.cancelled = False

    def close(self) -> None:
        """Drop the model; its own destructors release what it holds."""
        self._model = self._infer = None
