"""What a `model.toml` says, as frozen structs.

A struct holds values that have the right type and lie in the right range one by one; what several keys say
together (a packed layout needs a tokenizer, a bucket must not exceed `max_tokens`) is checked by
`trioserve.config.model_problems`. Every struct encodes to JSON and back without a hook, so a worker process
gets the configuration as it was read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a model may be called: it stands in file names, log lines and metric labels, so nothing in it needs
quoting."""

TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""What a tensor may be called: it is a Python keyword argument of `Model.infer` and a name of an ONNX
graph."""

MAX_BATCH_ROWS = 2_000
"""Largest batch that can be configured. What became of each row must fit in the message of 16 KiB that a worker answers
with, also when every row has failed: 8 bytes each."""

Sha256 = Annotated[
    str, Meta(pattern=r"^([0-9a-f]{64})?$", description="64 lower-case hexadecimal digits, or empty")
]
Count = Annotated[int, Meta(ge=1)]
PolicyName = Annotated[
    str,
    Meta(
        pattern=r"^(adaptive|greedy|fixed|triton|tensorflow|bentoml|clipper)(:\d{1,3}(\.\d+)?)?$",
        description="adaptive, greedy, fixed, triton, tensorflow, bentoml or clipper; with a window in ms: fixed:0.5",
    ),
]


class TensorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One input or output tensor of a model."""

    dtype: str
    """Datatype, by any name the protocol knows: `f4`, `float32`, `FP32`, `i8`, `bytes`, ..."""

    dims: Annotated[
        list[int], Meta(min_length=1, max_length=8, description="-1 for the rows, then fixed sizes")
    ]
    """Shape. The first dimension is the batch and is -1; every other one is fixed and at least 1."""


class TokenizerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the text of a request becomes token ids.

    A model with a tokenizer takes one BYTES input of one text a row.
    """

    file: Annotated[str, Meta(min_length=1)]
    """A `tokenizer.json` of the Hugging Face `tokenizers` library, relative to the model's folder."""

    max_tokens: Annotated[int, Meta(ge=2, le=65_536, description="tokens")] = 256
    """Tokens a text is truncated to, special tokens included. What the file itself says of padding and
    truncation is not used."""

    sha256: Sha256 = ""
    """SHA-256 of the file in hexadecimal; empty means unchecked."""


class BatchingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How requests are put together.

    Waiting never exceeds 2 ms, and an idle executor waits only for what is known to be on its way.
    """

    max_rows: Annotated[int, Meta(ge=1, le=MAX_BATCH_ROWS, description="rows")] = 32
    """Rows of the largest batch."""

    window_ms: Annotated[float, Meta(ge=0, le=2, description="milliseconds")] = 2.0
    """Longest that a batch may be held back for requests that are on their way, in milliseconds."""

    policy: Literal["adaptive", "greedy", "fixed"] = "adaptive"
    """What decides when a batch is cut.

    `adaptive`: as soon as the executor can take it; the window is used for requests that are as good as here.

    `greedy`: whatever waits, as soon as the executor can take it.

    `fixed`: when it is full or its oldest request has waited `window_ms`.
    """

    shadows: list[PolicyName] = field(default_factory=list)
    """Policies that the statistics are to say of what they would have made of the same traffic: `greedy`, `fixed:2`
    (a window in milliseconds), `triton:2`, `tensorflow`, `bentoml`, `clipper`, `adaptive`. Some microseconds a request
    each."""

    max_tokens: Annotated[int, Meta(ge=0, description="tokens")] = 0
    """Tokens of the largest batch, padding included; 0 means that only `max_rows` bounds it. One request
    longer than this still runs, alone."""

    layout: Literal["padded", "packed"] = "padded"
    """How token rows are laid out for the graph.

    `padded`: `input_ids` and `attention_mask`, both i64[rows, longest]; output row i is row i.

    `packed`: all requests one after the other on one token axis, no padding: `input_ids`,
    `position_ids` (0, 1, 2, ... anew for each request) and `segment_ids` (the row a token belongs to, 0 ..
    rows-1, ascending), all i64[tokens]; the graph gives outputs of [rows, ...] with row i for segment i.
    """

    buckets: Annotated[list[Count], Meta(description="ascending token counts")] = field(
        default_factory=lambda: [16, 32, 64, 128, 256]
    )
    """Upper bounds of the length classes that text requests are batched by, in tokens, ascending."""

    @property
    def named_policy(self) -> str:
        """The policy with its window, as `trioserve.batching.policy_named` takes it."""
        return f"{self.policy}:{self.window_ms!r}"


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One model: the file it is loaded from, its signature, and how it is served."""

    name: str
    """What clients call it: a letter or digit, then up to 63 letters, digits, `_`, `.` or `-`. Default in a
    file: its folder's name."""

    backend: Literal["python", "onnx"]
    """What runs it: a `trioserve.Model` subclass, or ONNX Runtime."""

    file: Annotated[str, Meta(min_length=1)]
    """The Python source or the ONNX graph, relative to the model's folder and inside it."""

    version: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 1
    """Version that clients may ask for."""

    class_name: str = field(default="", name="class")
    """Python backend: the class in `file`; may be empty when the file defines exactly one `trioserve.Model`.
    Key `class` in a file."""

    args: dict[str, Any] = field(default_factory=dict)
    """Python backend: keyword arguments of the class's constructor, JSON values."""

    sha256: Sha256 = ""
    """SHA-256 of `file` in hexadecimal; empty means unchecked."""

    slots: Annotated[int, Meta(ge=1, le=1_048_576, description="rows")] = 1024
    """Rows of the slab that requests of this model wait in. Bounds what is queued; memory is touched only as
    it is used."""

    default_deadline_ms: Annotated[float, Meta(gt=0, le=3_600_000, description="milliseconds")] = 2000.0
    """Deadline of a request that brings none, in milliseconds from the moment its first byte was read. It also bounds
    what may wait: 1.25 times the rows that the model can do in this time, or in a request's own if that is longer; more
    are shed."""

    max_text_nbytes: Annotated[int, Meta(ge=1, le=16 << 20, description="bytes")] = 16_384
    """Longest text of one row in bytes of UTF-8; a longer one is refused before it is queued."""

    inputs: dict[str, TensorConfig] = field(default_factory=dict)
    """Input tensors in wire order. Python backend: may be left out, the class says it."""

    outputs: dict[str, TensorConfig] = field(default_factory=dict)
    """Output tensors in wire order. Python backend: may be left out, the class says it."""

    tokenizer: TokenizerConfig | None = None
    """Present for a model that is given text and runs on token ids."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """How requests are put together."""

    watchdog_s: Annotated[float, Meta(gt=0, le=86_400, description="seconds")] = 1.0
    """Shortest time after which a worker that does not give a batch back counts as hung, in seconds: it is killed, and
    started again. A batch may take ten times what batches of its size usually take, if that is longer. For a model
    whose run time depends on what it is given, say the longest."""

    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Threads one batch is computed with."""

    warmup: bool = True
    """Whether the usual batch sizes run once before the model is ready. Without it the first requests pay for
    that, and deadlines are predicted from nothing at first."""

    directory: str = ""
    """Absolute path of the folder that `file` and `tokenizer.file` are relative to. Not a key of
    `model.toml`."""

    @property
    def file_path(self) -> Path:
        """Absolute path of `file`."""
        return Path(self.directory, self.file)

    @property
    def tokenizer_path(self) -> Path | None:
        """Absolute path of the tokenizer's file, None without a tokenizer."""
        return Path(self.directory, self.tokenizer.file) if self.tokenizer else None

    def to_json(self) -> bytes:
        """The configuration for another process; `from_json` reads it."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> ModelConfig:
        """The configuration that `to_json` wrote.

        Raises:
            msgspec.ValidationError: `data` is something else.
        """
        return msgspec.json.decode(data, type=cls)
