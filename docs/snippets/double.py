"""A model that is small enough to ask by hand: four numbers in, twice the numbers out."""

import numpy as np
import numpy.typing as npt

import trioserve


class Double(trioserve.Model):
    inputs = {"x": trioserve.Tensor("f4", [-1, 4])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 4])}

    def infer(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return x * np.float32(2)


if __name__ == "__main__":
    trioserve.run(Double(), port=7001)
