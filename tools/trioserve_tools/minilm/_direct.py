"""MiniLM called directly, without a server: what served results and throughput are compared with."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = Sequence[Sequence[int]]
"""Token ids of each text."""


class Direct:
    """A tokenizer and an ONNX Runtime session over the files a server loads, set up as `model.toml` says."""

    def __init__(self, folder: Path) -> None:
        """Loads both.

        Args:
            folder: The model's folder in a repository.
        """
        config = tomllib.loads((folder / "model.toml").read_text())
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = config["threads"]
        options.inter_op_num_threads = 1
        # As the server has it: several models share few cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(folder / config["file"]), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(
            str(folder / config["tokenizer"]["file"])
        )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(config["tokenizer"]["max_tokens"])
        self._batching: dict[str, Any] = config["batching"]
        self._feed = packed_feed if self._batching["layout"] == "packed" else padded_feed

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def run(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Embeds token rows as one batch: f32[rows, 384]."""
        (embeddings,) = self._session.run(["embedding"], self._feed(rows))
        result: npt.NDArray[np.float32] = embeddings
        return result

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embeds texts, in the batches that `batches` makes of them: f32[texts, 384]."""
        return np.concatenate([self.run(batch) for batch in self.batches(self.tokenize(texts))])

    def batches(self, rows: Rows) -> list[Rows]:
        """Token rows in their order, cut into batches of at most the configured rows and tokens."""
        made: list[list[Sequence[int]]] = [[]]
        for row in rows:
            tokens = sum(map(len, made[-1])) + len(row)
            if made[-1] and (
                len(made[-1]) == self._batching["max_rows"] or tokens > self._batching["max_tokens"]
            ):
                made.append([])
            made[-1].append(row)
        return list(made)


def padded_feed(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    """Inputs of a padded graph."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def packed_feed(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    """Inputs of a packed graph."""
    lengths = [len(row) for row in rows]
    return {
        "input_ids": np.concatenate([np.asarray(row, np.int64) for row in rows]),
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "segment_ids": np.repeat(np.arange(len(rows)), lengths),
    }
