"""Small models on disk."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from trioserve.config import ModelConfig

MODELS = Path(__file__).with_name("models.py")


@pytest.fixture
def python_config() -> ModelConfig:
    return ModelConfig(
        name="affine", backend="python", file="models.py", class_name="Affine", directory=str(MODELS.parent)
    )


@pytest.fixture(scope="session")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `gemm.onnx`: y = tanh(x @ w + b), f32[n, 6] -> f32[n, 3]."""
    folder = tmp_path_factory.mktemp("gemm")
    weights = [((i * 7) % 11 - 5) / 5 for i in range(18)]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [6, 3], weights),
            helper.make_tensor("b", TensorProto.FLOAT, [3], [0.1, 0.2, 0.3]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "gemm.onnx").write_bytes(model.SerializeToString())
    return folder
