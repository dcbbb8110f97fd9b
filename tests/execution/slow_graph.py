"""A graph that takes as long as its input says: for batches that must be seen running."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper

from trioserve.config import BatchingConfig, ModelConfig, TensorConfig

FOREVER = 100_000_000.0
"""Rounds that no test would wait for."""


def write_slow_graph(folder: Path) -> ModelConfig:
    """`slow.onnx`: y = x, f32[n, 4], after as many rounds of a loop as the largest first element says."""
    rounds = [
        helper.make_node("Gather", ["x", "zero"], ["first"], axis=1),
        helper.make_node("ReduceMax", ["first"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "", "x"], ["y"], body=_body()),
    ]
    graph = helper.make_graph(
        rounds,
        "slow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("zero", TensorProto.INT64, [], [0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "slow.onnx").write_bytes(model.SerializeToString())
    tensor = TensorConfig("f4", [-1, 4])
    return ModelConfig(
        name="slow",
        backend="onnx",
        file="slow.onnx",
        directory=str(folder),
        inputs={"x": tensor},
        outputs={"y": tensor},
        batching=BatchingConfig(max_rows=16),
    )


def _body() -> object:
    return helper.make_graph(
        [
            helper.make_node("Abs", ["v"], ["v_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "round",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n", 4]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, ["n", 4]),
        ],
    )
