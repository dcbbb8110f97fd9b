"""The fake backend keeps the contract that real ones keep."""

from pathlib import Path

import numpy as np
import pytest

from trioserve.backends import LoadContext
from trioserve.config import ModelConfig
from trioserve.testing import BackendContract, FakeBackend, FakeModelError
from trioserve_protocol import DType, Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("x", DType.F32, (-1, 3)), TensorSpec("n", DType.I32, (-1,))),
    (TensorSpec("y", DType.F32, (-1, 2)), TensorSpec("z", DType.F64, (-1,))),
)


def context() -> LoadContext:
    file = Path(__file__)
    config = ModelConfig(name="fake", backend="python", file=file.name, directory=str(file.parent))
    return LoadContext(config, SIGNATURE)


class TestFakeBackend(BackendContract):
    def make_backend(self) -> FakeBackend:
        return FakeBackend()

    def make_context(self) -> LoadContext:
        return context()


def test_results_show_whose_they_are() -> None:
    backend = FakeBackend()
    backend.load(context())
    x, n = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([10, 20], np.int32)
    y, z = backend.infer((x, n), (np.zeros((2, 2), np.float32), np.zeros(2)))
    assert y.tolist() == [[16, 16], [35, 35]]
    assert z.tolist() == [16, 35]
    assert backend.calls == [2]


def test_fails_when_told() -> None:
    backend = FakeBackend(fails=lambda inputs: bool((inputs[0] == 5).any()))
    backend.load(context())
    n = np.zeros(1, np.int32)
    out = (np.zeros((1, 2), np.float32), np.zeros(1))
    backend.infer((np.ones((1, 3), np.float32), n), out)
    with pytest.raises(FakeModelError):
        backend.infer((np.full((1, 3), 5, np.float32), n), out)
    backend.close()
    assert backend.closed
