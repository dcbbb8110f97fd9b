"""Models that the tests of backends and workers load by file."""

import os
import sys
import time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import trioserve
from trioserve.backends import LoadContext

Array = npt.NDArray[Any]


class Affine(trioserve.Model):
    """y = x * factor + 1, by row; raises where a row holds the value told."""

    inputs: ClassVar = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs: ClassVar = {"y": trioserve.Tensor("f4", [-1, 4])}
    max_batch_rows = 16

    def __init__(self, factor: float = 2.0, bad: float | None = None) -> None:
        self.factor = factor
        self.bad = bad

    def load(self, ctx: LoadContext) -> None:
        self.loaded = ctx.name

    def infer(self, x: Array) -> Array:
        if self.bad is not None and (x == self.bad).any():
            raise ValueError("a secret of the model's")
        return x * np.float32(self.factor) + np.float32(1)


class Pair(trioserve.Model):
    """Two inputs, two outputs, by dict or tuple."""

    inputs: ClassVar = {"a": trioserve.Tensor("f4", [-1, 3]), "b": trioserve.Tensor("i4", [-1])}
    outputs: ClassVar = {"sum": trioserve.Tensor("f4", [-1]), "twice": trioserve.Tensor("i4", [-1])}

    def __init__(self, form: str = "dict") -> None:
        self.form = form

    def infer(self, a: Array, b: Array) -> object:
        total, twice = a.sum(axis=1) + b.astype(np.float32), b * np.int32(2)
        if self.form == "dict":
            return {"twice": twice, "sum": total}
        if self.form == "tuple":
            return total, twice
        if self.form == "short":
            return (total,)
        if self.form == "misnamed":
            return {"sum": total, "thrice": twice}
        return [total, twice]


class Leaving(Affine):
    """Ends its program instead of loading."""

    def load(self, ctx: LoadContext) -> None:
        sys.exit(3)


class Patient(Affine):
    """Computes for as many seconds as the largest first element says; looks at `cancelled` where that is positive."""

    def load(self, ctx: LoadContext) -> None:
        self.ctx = ctx

    def infer(self, x: Array) -> Array:
        most = float(x[:, 0].max())
        end = time.monotonic() + abs(most)
        while time.monotonic() < end:
            if most > 0 and self.ctx.cancelled:
                raise RuntimeError("nobody waits")
        return x


class Wrong(Affine):
    """Returns another dtype or shape than it says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def infer(self, x: Array) -> Array:
        return x.astype(np.float64) if self.how == "dtype" else x[:, :2]


class Broken(Affine):
    """Fails to load."""

    def load(self, ctx: LoadContext) -> None:
        raise RuntimeError("no device")


class Forking(Affine):
    """Leaves a child behind that holds all its descriptors."""

    def load(self, ctx: LoadContext) -> None:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)


class Fragile(Affine):
    """Takes its process down where a row starts with -1, and takes its time where one starts with -2."""

    def infer(self, x: Array) -> Array:
        if (x[:, 0] == -1).any():
            os._exit(7)
        if (x[:, 0] == -2).any():
            time.sleep(0.3)
        return super().infer(x)


class Bag(trioserve.Model):
    """Of a text: the sum of its token ids and their number, in the padded layout."""

    inputs: ClassVar = {"text": trioserve.Tensor("bytes", [-1])}
    outputs: ClassVar = {"bag": trioserve.Tensor("f4", [-1, 2])}

    def infer(self, input_ids: Array, attention_mask: Array) -> Array:
        totals = (input_ids * attention_mask).sum(axis=1)
        return np.stack([totals, attention_mask.sum(axis=1)], axis=1).astype(np.float32)


class PackedBag(Bag):
    """The same, in the packed layout."""

    def infer(self, input_ids: Array, position_ids: Array, segment_ids: Array) -> Array:  # type: ignore[override]
        rows = int(segment_ids[-1]) + 1
        totals = np.bincount(segment_ids, input_ids, rows)
        lengths = np.zeros(rows)
        np.maximum.at(lengths, segment_ids, position_ids + 1)
        return np.stack([totals, lengths], axis=1).astype(np.float32)
