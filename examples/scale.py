"""A model in Python, served: `python examples/scale.py`, then `python examples/scale_client.py` elsewhere."""

from typing import Any

import numpy as np

import trioserve


class Scale(trioserve.Model):
    """Multiplies 128 numbers by a factor and keeps the first 64."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 64])}

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def load(self, ctx: Any) -> None:
        """Runs once, in the worker process, before the first batch."""
        self.weights = np.eye(128, 64, dtype=np.float32) * np.float32(self.factor)

    def infer(self, x: np.ndarray) -> Any:
        """Computes a whole batch: f32[rows, 128] -> f32[rows, 64]."""
        return x @ self.weights


if __name__ == "__main__":
    trioserve.run(Scale(), port=7001)
