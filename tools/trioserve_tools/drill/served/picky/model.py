"""A model that one bad row makes raise."""

import numpy as np

import trioserve


class Picky(trioserve.Model):
    """f32[rows, 8] -> f32[rows, 8], one more; raises for the whole batch if any number in it is none."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 8])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 8])}
    max_batch_rows = 32

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        if np.isnan(x).any():
            raise ValueError("not a number")
        return x + np.float32(1)
