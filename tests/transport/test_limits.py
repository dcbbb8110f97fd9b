"""What one client may take of a server, and that the others do not notice."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.gate import executor_held, hold
from tests.e2e.harness import (
    Closed,
    ServerProcess,
    Wire,
    infer,
    row,
    serving,
    wait_for,
)
from trioserve_protocol import (
    HEADER_NBYTES,
    Error,
    ErrorCode,
    Pong,
    Result,
    bind_frame,
    frame,
    frame_bytes,
    ping_frame,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SOFT_S = 2.0
HARD_NBYTES = 3 << 20
LIMITS = {
    "header_stall_s": 0.3,
    "body_grace_s": 0.3,
    "body_min_nbytes_per_s": 100_000,
    "output_soft_nbytes": 1 << 20,
    "output_soft_s": SOFT_S,
    "output_hard_nbytes": HARD_NBYTES,
    "output_total_nbytes": 6 << 20,
    "control_frames_per_s": 200,
    "max_connections": 12,
}


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with limits that a test can reach in a fraction of a second."""
    path = tmp_path_factory.mktemp("unix") / "socket"
    with serving("scale", "slow", "image", "blob", "held", limits=LIMITS, unix_path=str(path)) as server:
        yield server


@pytest.fixture
def server(strict_server: ServerProcess) -> Iterator[ServerProcess]:
    yield strict_server
    strict_server.assert_at_rest()


def others_are_served(server: ServerProcess, count: int = 20) -> None:
    """Another client sends small requests, one after the other."""
    with server.connect() as wire:
        wire.bind("scale")
        for rid in range(1, count + 1):
            wire.send(infer(rid, row(rid)))
            assert wire.result(rid)[0] == 2 * rid


# ---------------------------------------------------------------- slow senders


def test_a_header_that_stalls(server: ServerProcess) -> None:
    with server.connect() as wire:
        started = time.monotonic()
        wire.send(ping_frame(1) + ping_frame(2)[:20])
        assert wire.receive() == Pong(1, b"")
        assert "header" in wire.expect_error(ErrorCode.DEADLINE_EXCEEDED, 0).message
        assert time.monotonic() - started > LIMITS["header_stall_s"]
        assert not wire.expect_closed()


def test_a_trickle_of_single_bytes_is_a_stall_too(server: ServerProcess) -> None:
    with server.connect() as wire:
        trickle(wire, ping_frame(2)[:10])
        assert "header" in wire.expect_error(ErrorCode.DEADLINE_EXCEEDED, 0).message


def trickle(wire: Wire, data: bytes) -> None:
    for byte in data:
        wire.send(bytes([byte]))
        time.sleep(0.05)


def test_an_idle_connection_is_no_stall(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.send(ping_frame(1))
        wire.receive()
        wire.expect_silence(0.7)


@pytest.mark.parametrize("nbytes", [40_000, 602_112], ids=["small", "large"])
def test_a_body_that_is_too_slow(server: ServerProcess, nbytes: int) -> None:
    with server.connect() as wire:
        wire.bind("image")
        started = time.monotonic()
        wire.send(infer(1, bytes(nbytes))[:5_000])
        codes = codes_until_closed(wire)
        assert codes[-1] == (0, ErrorCode.DEADLINE_EXCEEDED)
        assert codes[:-1] in ([], [(1, ErrorCode.CANCELLED_BY_CLIENT)])
        assert time.monotonic() - started > LIMITS["body_grace_s"]


def codes_until_closed(wire: Wire) -> list[tuple[int, int]]:
    codes = []
    try:
        while isinstance(event := wire.receive(), Error):
            codes.append((event.rid, event.code))
    except Closed:
        return codes
    raise AssertionError(event)


def test_a_body_that_is_fast_enough_may_take_its_time(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("image")
        data = infer(1, np.ones(150_528, np.float32))
        for at in range(0, len(data), 60_000):
            wire.send(data[at : at + 60_000])
            time.sleep(0.06)
        assert wire.result(1)[0] == 150


# ---------------------------------------------------------------- readers that do not read


def unread(server: ServerProcess, *rows: int) -> Wire:
    """A client that has asked for results of so many rows, 256 KB each, and reads none of them.

    Over the Unix socket, where the kernel holds 200 KB and no more.
    """
    wire = server.connect_unix()
    wire.send(bind_frame(90, 1, "blob"))
    wire.receive()
    with contextlib.suppress(ConnectionError):  # closed before it has asked for everything
        for rid, count in enumerate(rows, start=1):
            wire.send(infer(rid, bytes(count * 262_144), rows=count))
    return wire


def closed_for(server: ServerProcess, reason: str) -> int:
    return int(server.statistics()["connections"]["closed"].get(reason, 0))


def waiting(server: ServerProcess, name: str) -> int:
    """Requests of a model that are there as a whole and not answered."""
    model = next(one for one in server.statistics()["models"] if one["model"] == name)
    return 0 if model["announced_rows"] else int(model["in_flight"])


def unsent_nbytes(server: ServerProcess) -> int:
    return int(server.statistics()["connections"]["unsent_nbytes"])


def test_a_reader_that_never_reads_is_closed_at_the_hard_limit(server: ServerProcess, tmp_path: Path) -> None:
    """Its second result never waits together with the first, not even until the soft limit has run out.

    Both requests are there before one of them runs: who is above the soft limit is not read from.
    """
    before, rss = closed_for(server, "replies unread"), server.rss_nbytes()
    most_nbytes = 0
    with executor_held(server, tmp_path / "gate") as gate, unread(server, 10, 10):
        wait_for(lambda: waiting(server, "blob") == 2)
        gate.touch()
        while closed_for(server, "replies unread") == before:
            most_nbytes = max(most_nbytes, unsent_nbytes(server))
        assert most_nbytes <= HARD_NBYTES
        assert server.rss_nbytes() - rss < 24 << 20
    others_are_served(server)


def test_one_batch_of_large_results_is_no_fault_of_a_client_that_reads(server: ServerProcess) -> None:
    before = closed_for(server, "replies unread")
    with unread(server, 16) as wire:
        wait_for(lambda: unsent_nbytes(server) > 3 << 20)
        assert wire.receive().rid == 1
    assert closed_for(server, "replies unread") == before


def test_a_reader_above_the_soft_limit_has_a_while(server: ServerProcess) -> None:
    before, started = closed_for(server, "replies unread"), time.monotonic()
    with unread(server, 6):
        wait_for(lambda: closed_for(server, "replies unread") == before + 1)
        assert time.monotonic() - started > SOFT_S


def test_a_slow_reader_that_catches_up_gets_everything(server: ServerProcess) -> None:
    """Meanwhile nothing is read from it."""
    with unread(server, 6) as wire:
        wait_for(lambda: unsent_nbytes(server) > 1 << 20)
        wire.send(ping_frame(9))
        time.sleep(0.1)
        assert [event.rid for event in wire.receive_many(2)] == [1, 9]


def test_beyond_the_total_the_client_that_holds_most_is_closed(server: ServerProcess) -> None:
    """Without that limit the soft one would close the small one first."""
    before = closed_for(server, "replies unread")
    with unread(server, 8) as small, unread(server, 11):
        wait_for(lambda: unsent_nbytes(server) > 4 << 20)
        with unread(server, 9) as third:
            wait_for(lambda: closed_for(server, "replies unread") == before + 1)
            assert [wire.receive().rid for wire in (small, third)] == [1, 1]


def test_a_ping_passes_results_that_wait(server: ServerProcess) -> None:
    """Between two frames, never inside one."""
    with unread(server, 1, 1, 1) as wire:
        wait_for(lambda: unsent_nbytes(server) > 500_000)
        wire.send(ping_frame(77))
        time.sleep(0.05)
        assert [type(event).__name__ for event in wire.receive_many(4)] == [
            "Result",
            "Pong",
            "Result",
            "Result",
        ]


# ---------------------------------------------------------------- floods and crowds


def test_a_flood_of_control_frames_slows_down_its_sender_only(server: ServerProcess) -> None:
    with server.connect() as flood:
        started = time.monotonic()
        flood.send(*(ping_frame(rid) for rid in range(1, 401)))
        others_are_served(server)
        answered = len(flood.sock.recv(1 << 20, socket.MSG_PEEK)) // HEADER_NBYTES
        assert answered < 400, "the others waited for the flood to be over"
        assert [event.rid for event in flood.receive_many(400)] == list(range(1, 401))
        assert time.monotonic() - started > 0.5, "200 at once, and as many in each second that follows"


def test_control_frames_that_are_refused_are_a_flood_too(server: ServerProcess) -> None:
    unknown = frame_bytes(frame(0x7F, rid=1))
    with server.connect() as flood:
        started = time.monotonic()
        flood.send(unknown * 400)
        assert {event.code for event in flood.receive_many(400)} == {ErrorCode.UNKNOWN_TYPE}
        assert time.monotonic() - started > 0.5


def test_one_connection_too_many_is_told_so(server: ServerProcess) -> None:
    wires = [server.connect() for _ in range(12)]
    for wire in wires:
        wire.send(ping_frame(1))
        wire.receive()
    with server.connect() as excess:
        excess.send(ping_frame(1) * 100)
        assert excess.expect_error(ErrorCode.TOO_MANY_CONNECTIONS, 0).retryable
        assert not excess.expect_closed()
    wires.pop().sock.close()
    wait_for(lambda: answers_pings(server))
    for wire in wires:
        wire.sock.close()
    wait_for(lambda: answers_pings(server))


def answers_pings(server: ServerProcess) -> bool:
    with server.connect() as wire:
        wire.send(ping_frame(1))
        return isinstance(wire.receive(), Pong)


def test_two_pipelining_clients_do_not_starve_a_third(server: ServerProcess) -> None:
    """Each fills whole turns; a request of the third waits for some of them, not for all."""
    with server.connect() as first, server.connect() as second:
        for wire in (first, second):
            wire.bind("scale")
            wire.sock.setblocking(False)
        frames = b"".join(infer(rid, b"", handle=9) for rid in range(1, 4000))
        for wire in (first, second):
            fill(wire.sock, frames * 40)
        others_are_served(server, 10)


def fill(sock: socket.socket, data: bytes) -> None:
    """Writes until the kernel takes no more."""
    at = 0
    try:
        while at < len(data):
            at += sock.send(data[at : at + 65_536])
    except BlockingIOError:
        return


# ---------------------------------------------------------------- deadlines


def test_a_short_deadline_inside_a_long_batch_is_answered_before_its_end(
    server: ServerProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with server.connect() as wire:
        wire.bind("held")
        started = time.monotonic()
        wire.send(hold(1, gate), hold(2, gate, timeout_us=20_000))
        event = wire.receive()
        assert time.monotonic() - started > 0.02
        assert isinstance(event, Error)
        assert event.rid == 2
        assert event.code in (ErrorCode.DEADLINE_AFTER_EXECUTION, ErrorCode.DEADLINE_IN_QUEUE)
        gate.touch()
        wire.result(1)


def test_deadlines_are_kept_while_the_server_is_otherwise_idle(server: ServerProcess, tmp_path: Path) -> None:
    with executor_held(server, tmp_path / "gate"), server.connect() as wire:
        wire.bind("slow")
        for rid, timeout_us in ((2, 5_000), (3, 1_000), (4, 30_000)):
            started = time.monotonic()
            wire.send(infer(rid, row(0), timeout_us=timeout_us))
            event = wire.receive()
            assert time.monotonic() - started > timeout_us / 1e6
            assert isinstance(event, Error)
            assert event.rid == rid


def test_the_default_deadline_holds_without_one(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("scale").bind("slow", 2)
        wire.send(infer(1, row(300), handle=2), infer(2, row(1), timeout_us=0xFFFF_FFFE))
        assert {event.rid for event in wire.receive_many(2) if isinstance(event, Result)} == {1, 2}
