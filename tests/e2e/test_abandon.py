"""Batches that nobody waits for any more, seen by clients: the executor is free again at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, Wire, infer, row, serving, wait_for
from tests.execution.slow_graph import FOREVER, write_slow_graph
from trioserve_protocol import ErrorCode, cancel_frame

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL_TOML = """
backend = "onnx"
file = "slow.onnx"
default_deadline_ms = 60000
watchdog_s = 60
inputs.x = { dtype = "f4", dims = [-1, 4] }
outputs.y = { dtype = "f4", dims = [-1, 4] }
batching = { max_rows = 16 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("slow")
    write_slow_graph(folder)
    (folder / "model.toml").write_text(MODEL_TOML)
    with serving(str(folder)) as server:
        yield server


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire.bind(server.statistics()["models"][0]["model"])
    server.assert_at_rest()


def served(wire: Wire, rid: int) -> None:
    """A quick request has its result, and not after a batch that runs for an hour."""
    wire.send(infer(rid, row(3)))
    assert wire.result(rid).tolist() == np.array([3, 0, 0, 0], np.float32).tolist()


def test_a_cancelled_batch_gives_the_executor_back(server: ServerProcess, wire: Wire) -> None:
    for rid in range(1, 40, 2):
        wire.send(infer(rid, row(FOREVER)))
        wait_for(lambda: server.statistics()["workers"][0]["in_flight"])
        wire.send(cancel_frame(rid))
        wire.expect_error(ErrorCode.CANCELLED_BY_CLIENT, rid)
        served(wire, rid + 1)
    assert server.statistics()["models"][0]["batches_abandoned"] >= 20


def test_so_does_one_whose_deadline_has_passed(wire: Wire) -> None:
    wire.send(infer(1, row(FOREVER), timeout_us=20_000))
    wire.expect_error(ErrorCode.DEADLINE_AFTER_EXECUTION, 1)
    served(wire, 2)


def test_so_does_one_whose_client_has_gone(server: ServerProcess, wire: Wire) -> None:
    with server.connect() as other:
        other.bind(server.statistics()["models"][0]["model"])
        other.send(*(infer(rid, row(FOREVER)) for rid in range(1, 65)))
        wait_for(lambda: server.statistics()["workers"][0]["in_flight"])
        other.reset()
    wait_for(lambda: server.statistics()["models"][0]["in_flight"] == 0)
    served(wire, 1)


def test_a_request_that_is_waited_for_keeps_its_batch(server: ServerProcess, wire: Wire) -> None:
    wire.send(infer(1, row(50_000)), infer(2, row(50_000)))
    wait_for(lambda: server.statistics()["workers"][0]["in_flight"])
    wire.send(cancel_frame(1))
    wire.expect_error(ErrorCode.CANCELLED_BY_CLIENT, 1)
    assert wire.result(2)[0] == 50_000
