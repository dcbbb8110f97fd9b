"""Models that tests play: a result is a function of the payload, and the payload one of the request's id and session.

So a result that reaches the wrong client, or was read from rows of another request, shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve_protocol import pad8

HANDLES = {"wide": 1, "narrow": 2, "text": 3}
Array = NDArray[Any]


def fixed_config(name: str, **changes: Any) -> ModelConfig:
    """Two inputs, so that tensors lie apart; rows of 16 and 3 bytes, so that there is padding."""
    batching = {"max_rows": 4} | changes.pop("batching", {})
    return ModelConfig(
        name=name,
        backend="python",
        file="model.py",
        inputs={"x": TensorConfig("i8", [-1, 2]), "tag": TensorConfig("u1", [-1, 3])},
        outputs={"y": TensorConfig("i8", [-1, 2]), "gat": TensorConfig("u1", [-1, 3])},
        batching=BatchingConfig(**batching),
        **({"slots": 16, "default_deadline_ms": 1000.0} | changes),
    )


def text_config(name: str = "text", **changes: Any) -> ModelConfig:
    batching = {"max_rows": 4, "buckets": [8, 32]} | changes.pop("batching", {})
    return ModelConfig(
        name=name,
        backend="onnx",
        file="model.onnx",
        inputs={"text": TensorConfig("bytes", [-1])},
        outputs={"y": TensorConfig("i8", [-1, 2]), "gat": TensorConfig("u1", [-1, 3])},
        tokenizer=TokenizerConfig("tokenizer.json", max_tokens=32),
        batching=BatchingConfig(**batching),
        **({"slots": 16, "default_deadline_ms": 1000.0, "max_text_nbytes": 4096} | changes),
    )


def input_rows(session: int, rid: int, rows: int) -> tuple[Array, Array]:
    """The tensors of a request: a function of who asks and of the id."""
    x = np.array([[(rid * 100 + row) % 2**60, session] for row in range(rows)], np.int64)
    tag = np.array([[rid & 0xFF, row & 0xFF, session & 0xFF] for row in range(rows)], np.uint8)
    return x, tag


def outputs_of(x: Array, tag: Array) -> tuple[Array, Array]:
    """What the models of fixed shape compute."""
    return 7 - 3 * x, tag ^ 0xFF


def text_of(session: int, rid: int, row: int, tokens: int = 5) -> bytes:
    return f"{session}/{rid}/{row} of {tokens} tokens".encode()


def tokens_in(text: bytes) -> int:
    return int(text.split()[2])


def text_outputs(ids: Array) -> tuple[Array, Array]:
    """What the text models compute from the first token id of each row, which is the text's CRC."""
    y = np.stack([ids.astype(np.int64), -ids.astype(np.int64)], axis=1)
    return y, np.repeat((ids & 0xFF).astype(np.uint8)[:, None], 3, axis=1)


def body_of(*tensors: Array) -> bytes:
    parts = [tensor.tobytes() for tensor in tensors]
    return b"".join(part + bytes(pad8(len(part)) - len(part)) for part in parts)


def text_result(texts: Sequence[bytes]) -> tuple[bytes, ...]:
    """What texts must get."""
    ids = np.array([crc32(text) for text in texts], np.uint32)
    return tuple(values.tobytes() for values in text_outputs(ids))
