"""The MiniLM sentence encoder as an ONNX graph, written node by node from its weights.

Six BERT layers of 384 features and 12 heads, the mean of a text's tokens, and L2 normalisation, as the
`sentence-transformers` package computes them. Two layouts of the same arithmetic:

| layout | inputs, all i64 | attention between | output, f32 |
|---|---|---|---|
| padded | `input_ids`, `attention_mask` [batch, seq] | unmasked tokens of a row | `embedding` [batch, 384] |
| packed | `input_ids`, `position_ids`, `segment_ids` [tokens] | its segment's | `embedding` [rows, 384] |

The packed graph spends nothing on padding, but its attention is quadratic in *all* tokens of a batch, so
batches should be small (some 64 to 128 tokens). Its rows are numbered 0 .. max(segment_ids).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, FEATURES = 6, 12, 384
HEAD_FEATURES = FEATURES // HEADS
MAX_POSITIONS = 512
OPSET = 17
EPSILON = 1e-12

MASKED = -1e4
"""Added to the scores of tokens that must not be seen: exp(-1e4) is 0 in f32. Not -inf, with which a row of
padding alone would be 0/0."""

_ROWS, _COLUMNS = (0, 2, 1, 3), (0, 2, 3, 1)
"""[batch, seq, heads, features] to [batch, heads, seq, features], and to [batch, heads, features, seq]."""

Layout = Literal["padded", "packed"]
Weights = Mapping[str, npt.NDArray[np.float32]]


class _Graph:
    """Collects nodes and constants; each method returns the name of the value it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: float | Sequence[int]) -> str:
        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(outputs)]
        node = helper.make_node(kind, inputs, names)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return names[0]

    def split3(self, value: str) -> tuple[str, str, str]:
        first = self.op("Split", value, outputs=3, axis=-1)
        return (first, f"{first[:-1]}1", f"{first[:-1]}2")

    def constant(self, value: npt.ArrayLike, name: str = "") -> str:
        array = np.array(value, order="C")
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def floats(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def linear(
        self, value: str, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32], name: str
    ) -> str:
        product = self.op("MatMul", value, self.constant(weight.T, f"{name}.weight"))
        return self.op("Add", product, self.constant(bias, f"{name}.bias"))

    def norm(self, value: str, weights: Weights, name: str) -> str:
        scale, bias = (
            self.constant(weights[f"{name}.{part}"], f"{name}.{part}") for part in ("weight", "bias")
        )
        return self.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=EPSILON)


def build_graph(weights: Weights, layout: Layout) -> onnx.ModelProto:
    """Builds the encoder.

    Args:
        weights: The tensors of `model.safetensors` by name, f32.
        layout: How token rows are laid out, see the module's table.

    Returns:
        A checked model of opset 17 with its weights inside (91 MB). Ids outside the vocabulary and texts of
        more than 512 tokens fail when it runs.
    """
    graph = _Graph()
    ids = "input_ids" if layout == "padded" else graph.op("Unsqueeze", "input_ids", graph.ints(0))
    bias, positions = _padded_bias(graph) if layout == "padded" else _packed_bias(graph)
    hidden = _embed(graph, weights, ids, positions)
    for index in range(LAYERS):
        hidden = _layer(graph, weights, f"encoder.layer.{index}", hidden, bias)
    pooled = _padded_mean(graph, hidden) if layout == "padded" else _packed_mean(graph, hidden)
    norm = graph.op("ReduceL2", pooled, axes=[-1], keepdims=1)
    graph.nodes.append(
        helper.make_node("Div", [pooled, graph.op("Max", norm, graph.floats(EPSILON))], ["embedding"])
    )
    return _finish(graph, layout)


def _finish(graph: _Graph, layout: Layout) -> onnx.ModelProto:
    names = (
        ["input_ids", "attention_mask"]
        if layout == "padded"
        else ["input_ids", "position_ids", "segment_ids"]
    )
    dims = ["batch", "seq"] if layout == "padded" else ["tokens"]
    rows = "batch" if layout == "padded" else "rows"
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in names]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [rows, FEATURES])
    proto = helper.make_graph(
        graph.nodes, f"minilm_{layout}", inputs, [output], list(graph.constants.values())
    )
    # The newest intermediate representation that ONNX Runtime releases of the last three years read.
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _padded_bias(graph: _Graph) -> tuple[str, str]:
    """Score bias f32[batch, 1, 1, seq] and position ids [seq]."""
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = graph.op("Mul", graph.op("Sub", graph.floats(1.0), mask), graph.floats(MASKED))
    length = graph.op("Gather", graph.op("Shape", "input_ids"), graph.constant(np.int64(1)))
    positions = graph.op("Range", graph.constant(np.int64(0)), length, graph.constant(np.int64(1)))
    return graph.op("Unsqueeze", hidden, graph.ints(1, 2)), positions


def _packed_bias(graph: _Graph) -> tuple[str, str]:
    """Score bias f32[tokens, tokens], block-diagonal, and position ids [tokens]."""
    columns = graph.op("Unsqueeze", "segment_ids", graph.ints(0))
    rows = graph.op("Unsqueeze", "segment_ids", graph.ints(1))
    same = graph.op("Equal", rows, columns)
    return graph.op("Where", same, graph.floats(0.0), graph.floats(MASKED)), "position_ids"


def _embed(graph: _Graph, weights: Weights, ids: str, positions: str) -> str:
    """Normalised sum of word, position and type embeddings; the type is constant and folded in."""
    words = graph.constant(weights["embeddings.word_embeddings.weight"], "words")
    places = (
        weights["embeddings.position_embeddings.weight"]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    word = graph.op("Gather", words, ids)
    place = graph.op("Gather", graph.constant(places, "places"), positions)
    return graph.norm(graph.op("Add", word, place), weights, "embeddings.LayerNorm")


def _layer(graph: _Graph, weights: Weights, name: str, hidden: str, bias: str) -> str:
    attended = _attention(graph, weights, name, hidden, bias)
    hidden = graph.norm(graph.op("Add", attended, hidden), weights, f"{name}.attention.output.LayerNorm")
    wide = graph.linear(hidden, *_pair(weights, f"{name}.intermediate.dense"), f"{name}.up")
    erf = graph.op("Erf", graph.op("Div", wide, graph.floats(2.0**0.5)))
    gelu = graph.op("Mul", graph.op("Mul", wide, graph.op("Add", erf, graph.floats(1.0))), graph.floats(0.5))
    narrow = graph.linear(gelu, *_pair(weights, f"{name}.output.dense"), f"{name}.down")
    return graph.norm(graph.op("Add", narrow, hidden), weights, f"{name}.output.LayerNorm")


def _attention(graph: _Graph, weights: Weights, name: str, hidden: str, bias: str) -> str:
    """All heads at once, with query, key and value out of one product."""
    parts = [_pair(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    scale = np.float32(HEAD_FEATURES**-0.5)
    (query, query_bias), *others = parts
    parts = [(query * scale, query_bias * scale), *others]
    joint = [np.concatenate([part[index] for part in parts]) for index in (0, 1)]
    qkv = graph.linear(hidden, joint[0], joint[1], f"{name}.qkv")
    # Each [batch, seq, 384] -> [batch, heads, seq, 32], the key transposed; the packed layout runs as a batch
    # of one.
    q, k, v = (
        graph.op("Reshape", part, graph.ints(0, 0, HEADS, HEAD_FEATURES)) for part in graph.split3(qkv)
    )
    q, k, v = (
        graph.op("Transpose", part, perm=perm) for part, perm in ((q, _ROWS), (k, _COLUMNS), (v, _ROWS))
    )
    scores = graph.op("MatMul", q, k)
    mixed = graph.op("MatMul", graph.op("Softmax", graph.op("Add", scores, bias), axis=-1), v)
    joined = graph.op("Reshape", graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), graph.ints(0, 0, FEATURES))
    return graph.linear(joined, *_pair(weights, f"{name}.attention.output.dense"), f"{name}.attended")


def _pair(weights: Weights, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _padded_mean(graph: _Graph, hidden: str) -> str:
    mask = graph.op("Unsqueeze", graph.op("Cast", "attention_mask", to=TensorProto.FLOAT), graph.ints(2))
    total = graph.op("ReduceSum", graph.op("Mul", hidden, mask), graph.ints(1), keepdims=0)
    count = graph.op("ReduceSum", mask, graph.ints(1), keepdims=0)
    return graph.op("Div", total, graph.op("Max", count, graph.floats(1e-9)))


def _packed_mean(graph: _Graph, hidden: str) -> str:
    """Sums the tokens of each segment by a product with the one-hot matrix [rows, tokens]."""
    one = graph.constant(np.int64(1))
    rows = graph.op("Add", graph.op("ReduceMax", "segment_ids", keepdims=0), one)
    numbers = graph.op("Unsqueeze", graph.op("Range", graph.constant(np.int64(0)), rows, one), graph.ints(1))
    member = graph.op("Equal", numbers, graph.op("Unsqueeze", "segment_ids", graph.ints(0)))
    matrix = graph.op("Cast", member, to=TensorProto.FLOAT)
    total = graph.op("MatMul", matrix, graph.op("Squeeze", hidden, graph.ints(0)))
    count = graph.op("ReduceSum", matrix, graph.ints(1), keepdims=1)
    return graph.op("Div", total, graph.op("Max", count, graph.floats(1e-9)))
