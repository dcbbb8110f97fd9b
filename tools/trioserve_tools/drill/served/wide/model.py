"""A model whose answers are large."""

import numpy as np

import trioserve


class Wide(trioserve.Model):
    """f32[rows, 2] -> f32[rows, 16384], the first number again and again: 8 bytes in, 64 KiB out."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 2])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 16384])}
    max_batch_rows = 4
    slots = 20

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        return np.repeat(x[:, :1], 16384, axis=1)
