"""The workload w3 as a model, for `trioserve serve --models`."""

import numpy as np

import trioserve
from trioserve_tools.bench._maths import WORKS

WORK = WORKS["w3"]


class W3(trioserve.Model):
    """Channel means and one layer: an image of 602 KB in, 4,000 bytes out."""

    name = "w3"
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
