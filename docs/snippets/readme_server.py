import numpy as np

import trioserve


class Scale(trioserve.Model):
    inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
    outputs = {"y": trioserve.Tensor("f4", [-1, 64])}

    def load(self, ctx):  # once, in the model's own process
        self.weights = np.eye(128, 64, dtype=np.float32) * 2

    def infer(self, x):  # arrays in, arrays out, a whole batch
        return x @ self.weights


trioserve.run(Scale(), port=7001)
