"""The promises of `trioserve.backends.Backend`, as tests that any implementation can be put through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trioserve.backends import Backend, LoadContext, LoadError, check_outputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from trioserve.backends import Arrays


class BackendContract(ABC):
    """Subclass it in a test module as `TestMyBackend` and say which model to load; pytest runs the rest.

    ```python
    class TestMyBackend(BackendContract):
        def make_backend(self):
            return MyBackend()

        def make_context(self):
            return LoadContext(config, signature)
    ```

    The model should compute something that differs from row to row.
    """

    atol = 1e-6
    """How far a row's result may be from that of the same row in another batch: kernels differ with the batch size."""

    row_counts = (1, 2, 3, 8)
    """Batch sizes that are tried; those over the model's maximum are left out."""

    @abstractmethod
    def make_backend(self) -> Backend:
        """A backend, not loaded."""

    @abstractmethod
    def make_context(self) -> LoadContext:
        """The model to load."""

    def make_inputs(self, rng: np.random.Generator, rows: int) -> Arrays:
        """Input arrays of some rows. Override it where random numbers of the signature's shapes are not good input."""
        arrays = []
        for spec in self.make_context().signature.inputs:
            dtype = spec.dtype.numpy
            if dtype is None:
                raise AssertionError(f"input {spec.name!r} has no fixed shape: override make_inputs")
            values = rng.standard_normal((rows, *spec.row_shape)) * 3
            arrays.append(values.astype(dtype) if dtype.kind == "f" else np.abs(values).astype(dtype))
        return tuple(arrays)

    # ------------------------------------------------------------ promises

    def test_returns_what_the_signature_says(self) -> None:
        """One array an output, of its dtype and shape, for every batch size."""
        backend = self._loaded()
        for rows in self._sizes():
            self._run(backend, self.make_inputs(_rng(), rows))

    def test_fills_out_only_with_what_it_returns(self) -> None:
        """An array of `out` that is returned holds the result; so it does when it held poison before."""
        backend, inputs = self._loaded(), self.make_inputs(_rng(), self._sizes()[-1])
        first = self._run(backend, inputs)
        for byte in (0x00, 0xA5, 0xFF):
            self._expect_same(self._run(backend, inputs, fill=byte), first, f"out held {byte:#04x}")

    def test_is_repeatable(self) -> None:
        """The same batch gives the same results, whatever ran in between."""
        backend, inputs = self._loaded(), self.make_inputs(_rng(), self._sizes()[-1])
        first = self._run(backend, inputs)
        self._run(backend, self.make_inputs(np.random.default_rng(1), self._sizes()[0]))
        self._expect_same(self._run(backend, inputs), first, "run again")

    def test_rows_are_independent(self) -> None:
        """A row by itself gives what it gives in a batch, and the order of rows does not matter."""
        backend, rows = self._loaded(), self._sizes()[-1]
        inputs = self.make_inputs(_rng(), rows)
        together = self._run(backend, inputs)
        for row in range(rows):
            alone = self._run(backend, tuple(array[row : row + 1] for array in inputs))
            self._expect_same(alone, tuple(array[row : row + 1] for array in together), f"row {row} alone")
        back = self._run(backend, tuple(np.ascontiguousarray(array[::-1]) for array in inputs))
        self._expect_same(back, tuple(array[::-1] for array in together), "rows in reverse")

    def test_odd_neighbours_change_nothing(self) -> None:
        """A row beside NaN and infinity gives what it gives by itself."""
        inputs = self.make_inputs(_rng(), 2 if self.make_context().max_rows > 1 else 1)
        floats = [array for array in inputs if array.dtype.kind == "f"]
        if len(inputs[0]) == 1 or not floats:
            return
        backend = self._loaded()
        alone = self._run(backend, tuple(array[:1] for array in inputs))
        for value in (np.nan, np.inf):
            for array in floats:
                array[1] = value
            with np.errstate(all="ignore"):
                beside = self._run(backend, inputs)
            self._expect_same(tuple(array[:1] for array in beside), alone, f"beside {value}")

    def test_leaves_inputs_alone(self) -> None:
        """Inputs are not written, and not looked at again once `infer` has returned."""
        backend, inputs = self._loaded(), self.make_inputs(_rng(), self._sizes()[-1])
        kept = tuple(array.copy() for array in inputs)
        first = self._run(backend, inputs)
        self._expect_same(inputs, kept, "inputs after infer")
        for array in inputs:
            array.view(np.uint8)[...] = 0xA5
        self._expect_same(self._run(backend, kept), first, "after the first inputs were overwritten")

    def test_an_interruption_is_over_when_the_batch_is(self) -> None:
        """What `interrupt` does to a batch does not reach the one after `resume`."""
        backend, inputs = self._loaded(), self.make_inputs(_rng(), 1)
        first = self._run(backend, inputs)
        for _ in range(2):
            backend.interrupt()
            with suppress(Exception):
                self._run(backend, inputs)
            backend.resume()
            self._expect_same(self._run(backend, inputs), first, "after an interruption")

    def test_an_error_leaves_nothing_behind(self) -> None:
        """Wrong inputs raise, and the next batch is right."""
        backend, inputs = self._loaded(), self.make_inputs(_rng(), 1)
        first = self._run(backend, inputs)
        try:
            self._run(backend, (*inputs, inputs[0]))
        except Exception as error:  # noqa: BLE001  any will do
            del error
        else:
            raise AssertionError("an input too many was accepted")
        self._expect_same(self._run(backend, inputs), first, "after an error")

    def test_a_missing_file_is_a_load_error(self) -> None:
        """What is wrong with a model is said in words, by LoadError."""
        context = self.make_context()
        missing = LoadContext(msgspec.structs.replace(context.config, file="no-such-file"), context.signature)
        try:
            self.make_backend().load(missing)
        except LoadError as error:
            if "no-such-file" not in str(error):
                raise AssertionError(f"the error does not name the file: {error}") from error
        else:
            raise AssertionError("a model without its file was loaded")

    def test_closes_twice(self) -> None:
        """`close` may be called at any time after `load`, and again."""
        backend = self._loaded()
        backend.close()
        backend.close()

    # ------------------------------------------------------------ how they are tried

    def _loaded(self) -> Backend:
        backend = self.make_backend()
        backend.load(self.make_context())
        return backend

    def _sizes(self) -> list[int]:
        return [rows for rows in self.row_counts if rows <= self.make_context().max_rows]

    def _run(self, backend: Backend, inputs: Arrays, *, fill: int = 0) -> Arrays:
        """Run a batch as the executor does: inputs read-only, results checked; returns copies."""
        outputs = self.make_context().signature.outputs
        rows = len(inputs[-1])
        out = tuple(np.zeros((rows, *spec.row_shape), spec.dtype.numpy) for spec in outputs)
        for place in out:
            place.view(np.uint8)[...] = fill
        given = tuple(array.view() for array in inputs)
        for array in given:
            array.flags.writeable = False
        results = backend.infer(given, out)
        check_outputs(tuple(spec.name for spec in outputs), results, out)
        return tuple(np.array(result) for result in results)

    def _expect_same(self, actual: Arrays, expected: Arrays, when: str) -> None:
        for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
            np.testing.assert_allclose(
                _comparable(left),
                _comparable(right),
                rtol=0,
                atol=self.atol,
                err_msg=f"array {index}, {when}",
            )


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _comparable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(np.float64) if array.dtype.kind in "fb" else array
