"""An input that kills its worker, among clients that try again: at most two workers die, and only it is refused."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, infer, row, serving
from tests.e2e.models import POISON
from trioserve_protocol import Error, ErrorCode, Result

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENTS = 4
REQUESTS = 400
DEADLINE_US = 10_000_000


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with serving("mortal", "scale", workers={"restart_backoff_s": 0.05}) as server:
        yield server


class Innocent:
    """A client that sends inputs of its own and tries again what is worth it."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        self.ended: Counter[str] = Counter()
        self._server = server
        self._number = number
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with self._server.connect() as wire:
            wire.bind("mortal")
            for rid in range(1, 2 * REQUESTS, 2):
                value = self._number * 10_000.0 + rid
                event = None
                for attempt in range(3):
                    wire.send(infer(rid + attempt * 10_000, row(value), timeout_us=DEADLINE_US))
                    event = wire.receive()
                    if not (isinstance(event, Error) and event.retryable):
                        break
                    time.sleep(0.01)
                ok = isinstance(event, Result) and np.frombuffer(event.payload, np.float32)[0] == 2 * value
                self.ended["ok" if ok else str(event)] += 1


def test_one_input_kills_two_workers_at_most_and_the_others_are_served(server: ServerProcess) -> None:
    innocents = [Innocent(server, number) for number in range(CLIENTS)]
    codes = []
    with server.connect() as wire:
        wire.bind("mortal")
        for rid in range(1, 6):
            wire.send(infer(rid, row(POISON), timeout_us=DEADLINE_US))
            event = wire.receive()
            assert isinstance(event, Error)
            codes.append(event.code)
    for innocent in innocents:
        innocent.thread.join(60)
    assert codes == [ErrorCode.WORKER_LOST] * 2 + [ErrorCode.POISON_INPUT] * 3
    total = sum((innocent.ended for innocent in innocents), Counter())
    assert total == Counter(ok=CLIENTS * REQUESTS)
    statistics = server.statistics()
    [mortal] = [model for model in statistics["models"] if model["model"] == "mortal"]
    assert mortal["quarantine"]["refused"] == mortal["quarantine"]["found"] == 1
    assert mortal["errors"]["POISON_INPUT"] == 3
    [worker] = statistics["workers"]
    assert worker["starts"] == 3
    assert [loss["restarting"] for loss in server.events("worker_lost")] == [True, True]
    assert len(server.events("input_quarantined")) == 1
    server.assert_at_rest()


def test_many_who_send_it_at_once_kill_no_more(server: ServerProcess) -> None:
    with server.connect() as wire, server.connect() as other:
        wire.bind("mortal").bind("scale", 2)
        other.bind("mortal")
        wire.send(*(infer(rid, row(POISON), timeout_us=DEADLINE_US) for rid in range(1, 100)))
        other.send(*(infer(rid, row(POISON), timeout_us=DEADLINE_US) for rid in range(1, 100)))
        events = [*wire.receive_many(99), *other.receive_many(99)]
        codes = Counter(event.code for event in events if isinstance(event, Error))
        assert set(codes) == {ErrorCode.WORKER_LOST, ErrorCode.POISON_INPUT}
        assert codes.total() == 198
        wire.send(infer(1000, row(2), handle=2))
        assert wire.result(1000)[0] == 4
    [worker] = server.statistics()["workers"]
    assert worker["starts"] <= 3
    server.assert_at_rest()
