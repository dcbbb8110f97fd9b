"""Twice the first half of a row: every value of the answer says which request it answers."""

import numpy as np

import trioserve


class Double(trioserve.Model):
    """f32[rows, 128] -> f32[rows, 64]; exact, as long as twice the number is."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 64])}
    max_batch_rows = 32

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        return x[:, :64] * np.float32(2)
