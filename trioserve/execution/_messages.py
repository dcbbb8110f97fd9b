"""What the supervisor and a worker say to each other on the control pair: one JSON object a SEQPACKET message.

supervisor                    worker
    Start ->                            which models, where their slabs are
          <- Ready | Failed             what became of them
    Abandon ->                          nobody waits for a batch any more
          <- Skipped                    it had not been begun and never will be
    Stop  ->                            finish what is queued, then end
end of stream either way: the other side is gone
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from trioserve.config import ModelConfig
from trioserve.memory import SlabLayout

MAX_CONTROL_NBYTES: Final = 131_072
"""Largest control message; the kernel takes up to about 212,000 bytes in one piece."""

WorkerKind = Literal["executor", "tokenizer"]
LoadStage = Literal["load", "warm-up", "self-test"]


class ModelStart(msgspec.Struct, frozen=True):
    """One model that a worker is to serve."""

    config: ModelConfig
    layout: SlabLayout

    fd: int
    """Descriptor of its arena in the worker."""

    nbytes: int
    """Size of its arena in bytes."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message to a worker."""

    epoch: int
    """Rises with each start; every descriptor carries it."""

    kind: WorkerKind

    sys_path: list[str]
    """The server's import path, so that the worker finds the same code."""

    models: list[ModelStart]
    """Descriptors name them by index."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Finish the batches that are queued on the data pair, then end."""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Nobody waits for a batch any more: skip it, or end it early. May come after the batch's end."""

    seq: int
    """Number of the batch."""


class ModelReady(msgspec.Struct, frozen=True):
    """What became of one model in a worker."""

    name: str

    load_ns: int
    """How long loading and warming up took, nanoseconds."""

    warmup_ns: dict[int, int]
    """Service time in nanoseconds by rows; by tokens, padding included, for a text model; by texts for a
    tokenizer. Empty without a warm-up."""

    error: str
    """Why the model does not serve, in words for its author; empty when it does. Batches for it are refused."""

    deviation_ns: dict[int, int] = {}
    """Mean absolute deviation of the calls from `warmup_ns`, nanoseconds, by the same sizes."""

    stage: LoadStage = "self-test"
    """How far it came: where there was an error or a doubt, if there was one."""

    doubt: str = ""
    """What the self-test did not like about a model that can be served all the same."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker serves batches from here on."""

    models: list[ModelReady]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker cannot serve at all, and ends."""

    message: str


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A batch was abandoned while it was queued: its rows are not touched any more. Its result comes in its turn."""

    seq: int
    """Number of the batch."""


_TO_WORKER: Final[msgspec.json.Decoder[Start | Abandon | Stop]] = msgspec.json.Decoder(Start | Abandon | Stop)
_FROM_WORKER: Final[msgspec.json.Decoder[Ready | Failed | Skipped]] = msgspec.json.Decoder(
    Ready | Failed | Skipped
)


def encode_control(message: Start | Abandon | Stop | Ready | Failed | Skipped) -> bytes:
    """The bytes of a message.

    Raises:
        ValueError: They are more than 131,072.
    """
    data = msgspec.json.encode(message)
    if len(data) > MAX_CONTROL_NBYTES:
        raise ValueError(
            f"a control message of {len(data)} bytes, at most {MAX_CONTROL_NBYTES} fit; are a model's args large?"
        )
    return data


def decode_for_worker(data: bytes) -> Start | Abandon | Stop:
    """The message that a worker received.

    Raises:
        msgspec.MsgspecError: It is no such message.
    """
    return _TO_WORKER.decode(data)


def decode_from_worker(data: bytes) -> Ready | Failed | Skipped:
    """The message that a supervisor received.

    Raises:
        msgspec.MsgspecError: It is no such message.
    """
    return _FROM_WORKER.decode(data)
