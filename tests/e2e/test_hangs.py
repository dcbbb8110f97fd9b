"""Workers that are there and do not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.harness import ServerProcess, infer, row, serving
from tests.e2e.models import POISON
from trioserve_protocol import Error, ErrorCode

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 0.5
"""Of the model, after which its worker is killed."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving("stuck", workers={"restart_backoff_s": 0.05, "max_restarts": 100}) as server:
        yield server


def test_an_endless_loop_is_ended_and_its_input_known(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("stuck")
        for deaths in (1, 2):
            wire.send(infer(deaths, row(POISON), timeout_us=30_000_000))
            began = time.monotonic()
            wire.expect_error(ErrorCode.WORKER_LOST, deaths)
            assert time.monotonic() - began >= LIMIT_S
            assert server.wait_event("worker_hung", deaths)["model"] == "stuck"
            loss = server.wait_event("worker_lost", deaths)
            assert loss["reason"] == "killed: it had a batch of stuck for 0.5 s"
        wire.send(infer(3, row(POISON), timeout_us=30_000_000))
        wire.expect_error(ErrorCode.POISON_INPUT, 3)
        wire.send(infer(4, row(2)))
        assert wire.result(4)[0] == 4
    server.assert_at_rest()


def test_a_stopped_worker_is_replaced_and_its_input_only_suspected(server: ServerProcess) -> None:
    hung, lost = len(server.events("worker_hung")), len(server.events("worker_lost"))
    found = server.statistics()["models"][0]["quarantine"]["found"]
    with server.connect() as wire:
        wire.bind("stuck")
        for more in (1, 2):
            os.kill(server.worker_pid, signal.SIGSTOP)
            wire.send(infer(more, row(7), timeout_us=30_000_000))
            event = wire.receive()
            assert isinstance(event, Error)
            assert (event.code, event.retryable) == (ErrorCode.WORKER_LOST, True)
            server.wait_event("worker_hung", hung + more)
            server.wait_event("worker_lost", lost + more)
            server.wait_event("worker_ready", lost + more + 1)
        wire.send(infer(3, row(7), timeout_us=30_000_000))
        assert wire.result(3)[0] == 14
    assert server.statistics()["models"][0]["quarantine"] == {"suspects": 0, "refused": 1, "found": found}
    server.assert_at_rest()
