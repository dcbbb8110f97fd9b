"""What is copied between the arrival of a request and its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, Wire, infer, row, serving
from trioserve_protocol import ErrorCode, cancel_frame

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving("scale", "slow") as server:
        yield server


def scale_statistics(server: ServerProcess) -> dict[str, Any]:
    [found] = [model for model in server.statistics()["models"] if model["model"] == "scale"]
    return found


def send_behind_a_busy_worker(wire: Wire, count: int, *more: bytes) -> None:
    """Keeps the worker busy with as many batches as it takes, then sends requests that must wait for one batch."""
    wire.bind("scale", 1).bind("slow", 2)
    wire.send(*(infer(1_000 + rid, row(100), handle=2) for rid in range(4)))
    wire.send(*(infer(rid, row(rid)) for rid in range(1, count + 1)), *more)


def test_in_the_order_of_arrival_a_batch_is_one_range_and_nothing_is_gathered(server: ServerProcess) -> None:
    before = scale_statistics(server)
    with server.connect() as wire:
        send_behind_a_busy_worker(wire, 20)
        wire.receive_many(24)
    after = scale_statistics(server)
    assert after["ok"] - before["ok"] == 20
    assert after["rows_gathered"] == before["rows_gathered"]


def test_around_a_dead_row_a_batch_is_gathered_once_at_most_and_counted(server: ServerProcess) -> None:
    before = scale_statistics(server)
    with server.connect() as wire:
        send_behind_a_busy_worker(wire, 20, cancel_frame(7))
        answers = {event.rid: event for event in wire.receive_many(24)}
    assert answers[7].code == ErrorCode.CANCELLED_BY_CLIENT
    for rid in {*range(1, 21)} - {7}:
        assert np.frombuffer(answers[rid].payload, np.float32)[0] == 2 * rid
    after = scale_statistics(server)
    assert after["ok"] - before["ok"] == 19
    # Running the two ranges one after the other may be predicted to cost less than copying them together.
    assert after["rows_gathered"] - before["rows_gathered"] <= 19
