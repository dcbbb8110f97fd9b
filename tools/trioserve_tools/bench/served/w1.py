"""The workload w1 as a model, for `trioserve serve --models`."""

import numpy as np

import trioserve
from trioserve_tools.bench._maths import WORKS

WORK = WORKS["w1"]


class W1(trioserve.Model):
    """A two-layer network: 512 bytes in, 256 bytes out."""

    name = "w1"
    inputs = {"x": trioserve.Tensor("f4", [-1, *WORK.input_dims])}
    outputs = {"y": trioserve.Tensor("f4", [-1, *WORK.output_dims])}
    max_batch_rows = WORK.max_rows

    def load(self, ctx: object) -> None:
        """Draws the weights."""
        del ctx
        self.function = WORK.function()

    def infer(self, x: np.ndarray) -> np.ndarray:
        """Computes a batch."""
        return self.function(x)
