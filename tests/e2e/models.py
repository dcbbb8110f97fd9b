"""Models with a visible effect, for servers in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import trioserve

Array = NDArray[np.float32]

POISON = -1.0e6
"""First element of a row on which `Fragile` raises."""


class Echo(trioserve.Model):
    """The model of the protocol's worked frame."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x: Array) -> Array:
        return x


class Scale(trioserve.Model):
    """Doubles."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x: Array) -> Array:
        return x * 2


class Fragile(trioserve.Model):
    """Doubles, but raises on a poisoned row."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x: Array) -> Array:
        if (x[:, 0] == POISON).any():
            raise ValueError("poisoned")
        return x * 2


class Slow(trioserve.Model):
    """Takes as many milliseconds as the largest first element of the batch says; answers with the input."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}
    default_deadline_ms = 10_000
    watchdog_s = 30

    def infer(self, x: Array) -> Array:
        time.sleep(float(x[:, 0].max()) / 1000)
        return x


class Held(trioserve.Model):
    """Holds its executor until the file exists whose path it is given, or for half a minute."""

    inputs = {"path": trioserve.Tensor("u1", [-1, 256])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 1])}
    default_deadline_ms = 60_000

    def infer(self, path: NDArray[np.uint8]) -> Array:
        gate, end = Path(os.fsdecode(path[0].tobytes().rstrip(b"\0"))), time.monotonic() + 30
        while not gate.exists() and time.monotonic() < end:
            time.sleep(0.001)
        return np.zeros((len(path), 1), np.float32)


class Image(trioserve.Model):
    """A 602 KB input and a 4 KB output that depends on all of it."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 3, 224, 224])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 1000])}
    max_batch_rows = 8
    slots = 64
    default_deadline_ms = 20_000

    def infer(self, x: Array) -> Array:
        return x.reshape(len(x), -1)[:, :150_000].reshape(len(x), 1000, 150).sum(axis=2)


class Blob(trioserve.Model):
    """Large in both directions: 256 KB in, 256 KB out."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 65_536])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 65_536])}
    max_batch_rows = 16
    slots = 256
    default_deadline_ms = 20_000

    def infer(self, x: Array) -> Array:
        return x + 1


class Mixed(trioserve.Model):
    """Two inputs of odd sizes, two outputs."""

    inputs = {"a": trioserve.Tensor("u1", [-1, 3]), "b": trioserve.Tensor("f4", [-1, 50_001])}
    outputs = {"n": trioserve.Tensor("i8", [-1]), "s": trioserve.Tensor("f4", [-1, 3])}
    max_batch_rows = 8
    slots = 64
    default_deadline_ms = 20_000

    def infer(self, a: NDArray[np.uint8], b: Array) -> dict[str, NDArray[np.generic]]:
        return {"n": a.sum(axis=1).astype(np.int64), "s": b[:, [0, 1, -1]]}


class Mortal(trioserve.Model):
    """Kills its own process on a poisoned row."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x: Array) -> Array:
        if (x[:, 0] == POISON).any():
            os.abort()
        return x * 2


class Stuck(trioserve.Model):
    """Doubles, but never ends on a poisoned row."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}
    watchdog_s = 0.5

    def infer(self, x: Array) -> Array:
        while (x[:, 0] == POISON).any():
            pass
        return x * 2


ALL = {"echo": Echo, "scale": Scale, "fragile": Fragile, "slow": Slow, "image": Image, "blob": Blob,
       "mixed": Mixed, "mortal": Mortal, "held": Held, "stuck": Stuck}  # fmt: skip
