"""The ONNX backend: the contract, outputs in place, and graphs that do not fit their configuration."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trioserve.backends import LoadContext, LoadError, OnnxBackend, signature_of
from trioserve.backends import _onnx as module
from trioserve.config import ModelConfig, TensorConfig, TokenizerConfig
from trioserve.testing import BackendContract


def context(folder: Path, **fields: Any) -> LoadContext:
    tensors = {
        "inputs": {"x": TensorConfig("f4", [-1, 6])},
        "outputs": {"y": TensorConfig("f4", [-1, 3])},
    }
    config = ModelConfig(
        name="gemm",
        backend="onnx",
        file=fields.pop("file", "gemm.onnx"),
        directory=str(folder),
        **tensors | fields,
    )
    return LoadContext(config, signature_of(config))


class TestGemm(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, onnx_folder: Path) -> None:
        self.folder = onnx_folder

    def make_backend(self) -> OnnxBackend:
        return OnnxBackend()

    def make_context(self) -> LoadContext:
        return context(self.folder)


class TestGemmInPlace(TestGemm):
    """The same, with every output bound."""

    @pytest.fixture(autouse=True)
    def _bind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "BIND_NBYTES", 1)


def test_large_outputs_are_written_in_place(onnx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BIND_NBYTES", 24)
    backend = OnnxBackend()
    backend.load(context(onnx_folder))
    slab = np.zeros((10, 3), np.float32)
    place = slab[4:6]
    (y,) = backend.infer((np.ones((2, 6), np.float32),), (place,))
    assert y is place
    assert slab[4:6].all()
    assert not slab[:4].any()
    assert not slab[6:].any()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"inputs": {"z": TensorConfig("f4", [-1, 6])}}, r"has inputs \['x'\], expected \['z'\]"),
        ({"inputs": {"x": TensorConfig("f8", [-1, 6])}}, r"is tensor\(float\), expected F64"),
        ({"inputs": {"x": TensorConfig("f4", [-1, 7])}}, "axis 1 of input 'x' is 6 in the graph, expected 7"),
        ({"inputs": {"x": TensorConfig("f4", [-1])}}, r"has shape \['n', 6\], expected \[-1\]"),
        ({"outputs": {"e": TensorConfig("f4", [-1, 3])}}, r"has outputs \['y'\], not 'e'"),
        ({"outputs": {"y": TensorConfig("i4", [-1, 3])}}, "output 'y' of the graph is"),
        ({"sha256": "0" * 64}, "the file is not the one configured"),
        ({"file": "absent.onnx"}, r"absent\.onnx: no such file"),
        (
            {
                "inputs": {"text": TensorConfig("bytes", [-1])},
                "tokenizer": TokenizerConfig(file="tokenizer.json"),
            },
            r"expected \['attention_mask', 'input_ids'\]",
        ),
    ],
)
def test_a_graph_that_does_not_fit_is_a_load_error(
    onnx_folder: Path, fields: dict[str, Any], match: str
) -> None:
    with pytest.raises(LoadError, match=match):
        OnnxBackend().load(context(onnx_folder, **fields))


def test_a_fixed_batch_is_a_load_error(onnx_folder: Path) -> None:
    import onnx

    model = onnx.load(onnx_folder / "gemm.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    (onnx_folder / "fixed.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        LoadError, match=r"axis 0 of (input 'x'|output 'y') is fixed at 4 in the graph; it must be symbolic"
    ):
        OnnxBackend().load(context(onnx_folder, file="fixed.onnx"))


def test_garbage_is_a_load_error(onnx_folder: Path) -> None:
    (onnx_folder / "garbage.onnx").write_bytes(b"not a graph")
    with pytest.raises(LoadError, match=r"garbage\.onnx is not a graph"):
        OnnxBackend().load(context(onnx_folder, file="garbage.onnx"))


def test_without_the_runtime_it_says_so(onnx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LoadError, match="needs the package onnxruntime"):
        OnnxBackend().load(context(onnx_folder))
