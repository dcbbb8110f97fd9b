"""Control messages: JSON that comes back as it went, and nothing larger than a message may be."""

from collections.abc import Callable

import msgspec
import pytest

from trioserve.execution import ModelReady, WorkerModel
from trioserve.execution._messages import (
    Abandon,
    Failed,
    ModelStart,
    Ready,
    Skipped,
    Start,
    Stop,
    decode_for_worker,
    decode_from_worker,
    encode_control,
)


def start(model: WorkerModel) -> Start:
    return Start(
        3, "executor", ["/a"], [ModelStart(model.config, model.layout, model.arena.fd, model.arena.nbytes)]
    )


def test_messages_to_a_worker(affine: WorkerModel) -> None:
    for message in (start(affine), Abandon(2**63), Stop()):
        assert decode_for_worker(encode_control(message)) == message


def test_messages_from_a_worker() -> None:
    for message in (Ready([ModelReady("m", 5, {1: 2, 32: 7}, "", {1: 1, 32: 2})]), Failed("why"), Skipped(3)):
        assert decode_from_worker(encode_control(message)) == message


def test_the_other_sides_messages_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_for_worker(encode_control(Failed("why")))
    with pytest.raises(msgspec.ValidationError):
        decode_from_worker(encode_control(Stop()))
    with pytest.raises(msgspec.MsgspecError):
        decode_from_worker(b"\0")


def test_large_arguments_are_refused_in_words(make_model: Callable[..., WorkerModel]) -> None:
    model = make_model("Affine", args={"factor": "x" * 200_000})
    with pytest.raises(ValueError, match="are a model's args large"):
        encode_control(start(model))
