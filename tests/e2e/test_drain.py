"""The end of a server: what was accepted is answered, whatever the clients do."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.harness import WAIT_S, Closed, ServerProcess, Wire, infer, row, serving
from trioserve_protocol import Error, ErrorCode, GoAway, Result, ping_frame

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    server = ServerProcess("scale", "slow", grace_s=1.0, workers={"stop_grace_s": 0.5})
    try:
        yield server.wait_ready()
        assert not server.events("connection_failed")
    finally:
        server.close()


class Load(threading.Thread):
    """A client that keeps some requests in flight until it is told to go away, and counts what becomes of them."""

    def __init__(self, wire: Wire, outstanding: int) -> None:
        super().__init__()
        self.wire = wire.bind("scale")
        self.outstanding = outstanding
        self.sent = 0
        self.ok: set[int] = set()
        self.refused: set[int] = set()
        self.failed: list[object] = []
        self.taken: int | None = None

    def run(self) -> None:
        try:
            for _ in range(self.outstanding):
                self._send()
            while True:
                self._note(self.wire.receive())
        except (Closed, OSError) as error:
            if isinstance(error, Closed) and error.reset:
                self.failed.append(error)
        finally:
            self.wire.sock.close()

    def _send(self) -> None:
        self.sent += 1
        self.wire.send(infer(self.sent, row(self.sent)))

    def _note(self, event: object) -> None:
        match event:
            case Result(rid=rid):
                self.ok.add(rid)
            case Error(rid=rid, code=ErrorCode.DRAINING):
                self.refused.add(rid)
            case GoAway(taken=taken):
                self.taken = taken
                return
            case _:
                self.failed.append(event)
        if self.taken is None:
            self._send()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_draining_under_load_fails_no_request(server: ServerProcess, stop: signal.Signals) -> None:
    loads = [Load(server.connect(), outstanding) for outstanding in (1, 1, 16, 64)]
    for load in loads:
        load.start()
    time.sleep(0.3)
    server.process.send_signal(stop)
    assert server.process.wait(WAIT_S) == 0
    for load in loads:
        load.join(WAIT_S)
        assert not load.is_alive()
        assert load.failed == []
        assert load.taken is not None
        assert load.ok == set(range(1, load.taken + 1)), "all that was taken is answered"
        assert load.refused <= set(range(load.taken + 1, load.sent + 1))
    assert sum(len(load.ok) for load in loads) > 500


def test_what_runs_is_finished_and_what_comes_is_refused(server: ServerProcess) -> None:
    with server.connect() as wire, server.connect() as other:
        wire.bind("slow")
        other.bind("scale")
        wire.send(infer(1, row(400)), infer(2, row(0)))
        wire.expect_silence(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert wire.receive() == GoAway(2, "the server is stopping")
        assert other.receive() == GoAway(0, "the server is stopping")
        wire.send(infer(3, row(0)))
        assert wire.expect_error(ErrorCode.DRAINING, 3).retryable
        assert wire.admin("health") == {"live": True, "ready": False, "draining": True}
        other.send(ping_frame(5))
        assert other.receive().rid == 5
        with pytest.raises(ConnectionError):
            server.connect()
        assert {event.rid for event in wire.receive_many(2) if isinstance(event, Result)} == {1, 2}
        assert not wire.expect_closed()
        assert not other.expect_closed()
    assert server.process.wait(WAIT_S) == 0


def test_what_is_not_finished_when_the_grace_is_over_is_told_so(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("slow")
        wire.send(infer(1, row(9000)))
        wire.expect_silence(0.05)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        wire.receive()
        assert wire.expect_error(ErrorCode.CANCELLED_BY_DRAIN, 1).retryable
        assert time.monotonic() - started > 0.9
        assert not wire.expect_closed()
    assert server.process.wait(WAIT_S) == 0
    assert server.events("drain_grace_over")


def test_a_second_signal_ends_it_at_once(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("slow")
        wire.send(infer(1, row(9000)))
        wire.expect_silence(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert isinstance(wire.receive(), GoAway)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        wire.expect_closed()
        assert server.process.wait(WAIT_S) == 0
        assert time.monotonic() - started < 6, "the worker's grace, and not the batch's 9 s"


def test_a_signal_while_the_server_starts_stops_the_start() -> None:
    server = ServerProcess("scale")
    try:
        time.sleep(0.6)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_S) in (0, -signal.SIGTERM)
    finally:
        server.close()


def test_a_client_that_does_not_close_does_not_hold_the_server_up() -> None:
    """Half a second, and not the grace, of which nothing is needed."""
    with serving("scale", grace_s=60.0) as server, server.connect() as wire:
        wire.send(ping_frame(1))
        wire.receive()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_S) == 0
