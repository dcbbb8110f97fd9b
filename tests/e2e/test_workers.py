"""The death of worker processes, seen by clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.harness import ServerProcess, infer, row, serving, wait_for
from tests.e2e.models import POISON
from trioserve_protocol import Error, ErrorCode, Result

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    workers = {"restart_backoff_s": 0.05, "max_restarts": 1}
    with serving("scale", "slow", "mortal", "image", workers=workers) as server:
        yield server


def test_a_killed_worker_is_replaced_once_and_every_request_is_answered(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("slow").bind("scale", 2).bind("image", 3)
        wire.send(infer(1, row(2000)))
        wire.expect_silence(0.05)
        wire.send(*(infer(rid, row(0)) for rid in range(2, 200)))
        wire.send(infer(300, bytes(602_112), handle=3)[:200_000])
        wire.expect_silence(0.05)
        first = server.worker_pid
        os.kill(first, signal.SIGKILL)
        lost = wire.receive()
        assert isinstance(lost, Error)
        assert (lost.code, lost.retryable) == (ErrorCode.WORKER_LOST, True)
        wire.send(infer(300, bytes(602_112), handle=3)[200_000:])
        ended = {lost.rid: lost} | {event.rid: event for event in wire.receive_many(199)}
        assert sorted(ended) == [*range(1, 200), 300]
        for event in ended.values():
            assert isinstance(event, Result) or event.code == ErrorCode.WORKER_LOST
        assert isinstance(ended[300], Result), "it was not with the worker"
        wire.send(infer(500, row(3), handle=2))
        assert wire.result(500)[0] == 6
        assert server.wait_event("worker_ready", 2)["pid"] != first
    server.assert_at_rest()


def test_a_second_death_closes_the_models_with_typed_refusals(server: ServerProcess) -> None:
    for deaths in (1, 2):
        os.kill(server.worker_pid, signal.SIGKILL)
        server.wait_event("worker_lost", deaths)
        if deaths == 1:
            server.wait_event("worker_ready", 2)
    with server.connect() as wire:
        wire.bind("scale")
        wire.send(infer(1, row(1)), *(infer(rid, row(1)) for rid in range(2, 20)))
        codes = {event.code for event in wire.receive_many(19) if isinstance(event, Error)}
        assert codes == {ErrorCode.UNAVAILABLE}
        wire.send(infer(20, row(1)))
        refused = wire.expect_error(ErrorCode.UNAVAILABLE, 20)
        assert refused.retryable
        assert 10_000_000 < (refused.retry_after_us or 0) <= 30_000_000
        assert wire.admin("health") == {"live": True, "ready": False, "draining": False}
    assert server.events("worker_lost")[-1]["restarting"] is False


def test_an_input_that_kills_the_worker_fails_alone_with_its_batch(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("mortal").bind("scale", 2)
        wire.send(infer(1, row(POISON)))
        wire.expect_error(ErrorCode.WORKER_LOST, 1)
        wire.send(infer(2, row(4), handle=2))
        assert wire.result(2)[0] == 8
    server.assert_at_rest()


def test_a_worker_that_died_idle_is_noticed_at_once(server: ServerProcess) -> None:
    os.kill(server.worker_pid, signal.SIGKILL)
    server.wait_event("worker_ready", 2)
    wait_for(lambda: server.statistics()["workers"][0]["state"] == "ready")
    [worker] = server.statistics()["workers"]
    assert (worker["kind"], worker["starts"], worker["deaths"], worker["in_flight"]) == ("executor", 2, 1, 0)
    assert worker["last_death"] == "killed by SIGKILL"
    assert worker["pid"] == server.worker_pid
    assert worker["rss_nbytes"] > 1 << 20


def test_deadlines_are_kept_while_there_is_no_worker(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("scale")
        os.kill(server.worker_pid, signal.SIGKILL)
        server.wait_event("worker_lost")
        wire.send(infer(1, row(1), timeout_us=20_000))
        assert isinstance(wire.receive(), Error), "no worker starts within 20 ms"
