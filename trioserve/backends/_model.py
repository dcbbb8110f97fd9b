"""The classes a user writes a model with."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from trioserve_protocol import DType, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trioserve.backends._base import LoadContext

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True, init=False)
class Tensor:
    """Datatype and shape of one input or output: `Tensor("f4", [-1, 128])`."""

    dtype: str
    """Any name of the datatype: `f4`, `float32`, `FP32`, `i8`, `bool`, ..."""

    dims: tuple[int, ...]
    """Shape. The first dimension is the rows of the batch and is -1; every other one is at least 1."""

    def __init__(self, dtype: str, dims: Sequence[int]) -> None:
        """Check and keep both.

        Raises:
            ValueError: The datatype is unknown, or `dims` is not -1 for the rows, then sizes of at least 1.
        """
        DType.parse(dtype)
        shape = tuple(dims)
        if not shape or shape[0] != -1 or any(type(size) is not int or size < 1 for size in shape[1:]):
            raise ValueError(f"dims {list(dims)!r}: expected -1 for the rows, then sizes of at least 1")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "dims", shape)

    def spec(self, name: str) -> TensorSpec:
        """The same as the protocol says it."""
        return TensorSpec(name, DType.parse(self.dtype), self.dims)


class Model:
    """A model in Python: subclass it, say what goes in and what comes out, and compute whole batches.

    ```python
    class Scale(trioserve.Model):
        inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
        outputs = {"y": trioserve.Tensor("f4", [-1, 64])}

        def load(self, ctx):
            self.weights = np.load(ctx.path("weights.npy"))

        def infer(self, x):
            return x @ self.weights
    ```

    The instance that is given to `trioserve.run` never computes: a worker process imports the class and makes its
    own, with the arguments of the constructor. These must therefore be JSON values; load what is larger in
    `load`.

    A class may also say `name`, `version`, `max_batch_rows`, `window_ms`, `slots`, `default_deadline_ms`,
    `watchdog_s` and `threads`.
    """

    name: ClassVar[str] = ""
    """What clients call the model. Default: the name of the class in lower case, words joined by `_`."""

    version: ClassVar[int] = 1
    """Version that clients may ask for."""

    inputs: ClassVar[Mapping[str, Tensor]] = {}
    """Input tensors in wire order; the names are the keyword arguments of `infer`."""

    outputs: ClassVar[Mapping[str, Tensor]] = {}
    """Output tensors in wire order."""

    max_batch_rows: ClassVar[int] = 32
    """Rows of the largest batch, and of the largest request."""

    window_ms: ClassVar[float] = 2.0
    """Longest that a batch may be held back for requests that are on their way, 0 to 2 milliseconds."""

    slots: ClassVar[int] = 1024
    """Rows that may wait for the model or run at a time, over all requests."""

    default_deadline_ms: ClassVar[float] = 2000.0
    """Deadline of a request that brings none, in milliseconds."""

    watchdog_s: ClassVar[float] = 1.0
    """Shortest time after which a worker that does not give a batch back is killed, in seconds; ten times what batches
    of its size usually take, if that is longer."""

    threads: ClassVar[int] = 1
    """Threads one batch is computed with (BLAS and the like)."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Keep what the constructor is given, for the worker."""
        self = super().__new__(cls)
        self._arguments = (args, kwargs)
        return self

    def __init__(self) -> None:
        """Nothing to do. A subclass may take arguments: JSON values."""

    def load(self, ctx: LoadContext) -> None:
        """Read weights, make sessions, move to a device. Runs once, in the worker, before the first batch.

        Args:
            ctx: The model's configuration; `ctx.path(...)` finds its files. A model whose batches take long keeps it:
                `ctx.cancelled` turns true while `infer` runs when nobody waits for the batch any more.
        """

    def infer(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  any signature may override it
        """Compute a whole batch.

        Called with rows of zeros, too, in several batch sizes before the server is ready.

        Args:
            *args: None: every input is given by its name.
            **kwargs: One array an input, (rows, ...), read-only, valid until this returns.

        Returns:
            An array (one output), a tuple of arrays in the order of `outputs`, or a dict of arrays by name; each
            (rows, ...) of exactly the dtype and shape that `outputs` says.
        """
        raise NotImplementedError(f"{type(self).__name__}.infer")


def model_name(cls: type[Model]) -> str:
    """What clients call models of a class."""
    return cls.name or _WORD_START.sub("_", cls.__name__).lower()


def class_fault(cls: type[Model]) -> str:
    """What is wrong with a class that shows without making a model of it, in a line; or nothing."""
    for group in ("inputs", "outputs"):
        for name, tensor in getattr(cls, group).items():
            if not isinstance(tensor, Tensor):
                return f"{cls.__name__}.{group}[{name!r}]: expected a trioserve.Tensor, got {type(tensor).__name__}"
    if cls.infer is Model.infer:
        return f"{cls.__name__}: expected a method `infer` that computes a batch, got none"
    for name in ("load", "infer"):
        if inspect.iscoroutinefunction(getattr(cls, name)):
            return f"{cls.__name__}.{name}: expected a plain function, got an async one; no event loop runs in a worker"
    return _call_fault(cls)


def _call_fault(cls: type[Model]) -> str:
    """Why `load` or `infer` cannot be called as a worker does it, or nothing."""
    try:
        inspect.signature(cls.load).bind(None, None)
    except TypeError as error:
        return f"{cls.__name__}.load: expected the parameters (self, ctx): {error}"
    if not cls.inputs or any(DType.parse(tensor.dtype) is DType.BYTES for tensor in cls.inputs.values()):
        return ""  # a model.toml says what it is given; behind a tokenizer, token ids by other names
    wanted = ", ".join(("self", *cls.inputs))
    try:
        inspect.signature(cls.infer).bind(None, **dict.fromkeys(cls.inputs))
    except TypeError as error:
        return f"{cls.__name__}.infer: expected the parameters ({wanted}), as `inputs` names them: {error}"
    return ""


def constructor_arguments(model: Model) -> dict[str, Any]:
    """The arguments a model was made with, by name.

    Raises:
        TypeError: They cannot be carried to another process: not JSON values, or not all of them have names.
    """
    args, kwargs = model._arguments  # noqa: SLF001  of this module's own class
    cls = type(model)
    # Of `__init__`, because the signature of a class with a `__new__` is that of `__new__`.
    bound = inspect.signature(cls.__init__).bind(model, *args, **kwargs)
    del bound.arguments["self"]
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise TypeError(f"{cls.__name__}: argument {name!r} has no name to pass it by in the worker")
        else:
            arguments[name] = value
    for name, value in arguments.items():
        if problem := _json_problem(value, name):
            raise TypeError(
                f"{cls.__name__}: argument {problem}; a worker process makes the model again, so its arguments must be"
                " JSON values (None, bool, int, float, str, list, dict with str keys)"
            )
    return arguments


def _json_problem(value: object, path: str) -> str:
    """What in a value JSON cannot carry unchanged, or nothing."""
    if value is None or type(value) in (bool, int, float, str):
        return ""
    if type(value) is list:
        problems = (_json_problem(item, f"{path}[{index}]") for index, item in enumerate(value))
    elif type(value) is dict:
        if odd := [key for key in value if type(key) is not str]:
            return f"{path!r} has the key {odd[0]!r}"
        problems = (_json_problem(item, f"{path}[{key!r}]") for key, item in value.items())
    else:
        return f"{path!r} is a {type(value).__name__}"
    return next(filter(None, problems), "")
