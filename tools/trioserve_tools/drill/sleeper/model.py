"""A model of known service time: it sleeps."""

import time

import numpy as np

import trioserve


class Sleeper(trioserve.Model):
    """f32[rows, 128] -> f32[rows, 4], the first four numbers; a batch takes `fixed_s + per_row_s * rows`."""

    inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def __init__(self, fixed_s: float, per_row_s: float) -> None:
        """Keeps the service time, in seconds."""
        self.fixed_s, self.per_row_s = fixed_s, per_row_s

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        time.sleep(self.fixed_s + self.per_row_s * len(x))
        return x[:, :4]
