"""A model that takes as long as it is told."""

import time

import numpy as np

import trioserve


class Slow(trioserve.Model):
    """f32[rows, 1] -> f32[rows, 1], the same; takes as many seconds as the largest number."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 1])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 1])}
    max_batch_rows = 32
    watchdog_s = 60

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        time.sleep(float(x.max()))
        return x
