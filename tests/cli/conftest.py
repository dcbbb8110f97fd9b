"""Model repositories that are right, to be made wrong."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

DOUBLE_TOML = """\
backend = "onnx"
file = "model.onnx"
[inputs.x]
dtype = "f4"
dims = [-1, 4]
[outputs.y]
dtype = "f4"
dims = [-1, 4]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model, `double`: y = x + x, f32 [rows, 4]."""
    folder = tmp_path / "repository" / "double"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(DOUBLE_TOML)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    return tmp_path / "repository"


@pytest.fixture
def toml(repository: Path) -> Path:
    """The `model.toml` of the one model."""
    return repository / "double" / "model.toml"
