"""What a server costs while nothing happens, and that nothing of it is left."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import (
    WAIT_S,
    ServerProcess,
    infer,
    row,
    serving,
    status_of,
    wait_for,
)
from trioserve_protocol import ping_frame

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CROWD = 1_000
CONNECTION_NBYTES = 32 << 10


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving("scale", limits={"max_connections_per_address": 2 * CROWD}) as server:
        yield server


def switches(pid: int) -> int:
    """Voluntary context switches of all threads: a thread that wakes up must go to sleep again."""
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    return sum(status_of(thread, "voluntary_ctxt_switches") for thread in threads)


def test_nothing_wakes_an_idle_server_nor_its_worker(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.bind("scale")
        for rid in range(1, 50):
            wire.send(infer(rid, row(1), timeout_us=100_000))
            wire.result(rid)
        time.sleep(1.3)  # the deadline and the watchdog of the last request are each looked at once
        pids = (server.pid, server.worker_pid)
        before = [switches(pid) for pid in pids]
        time.sleep(3.0)
        assert [switches(pid) for pid in pids] == before


def test_memory_without_a_model(server: ServerProcess) -> None:
    assert server.rss_nbytes() <= 120 << 20


def test_memory_of_a_crowd_of_idle_connections(server: ServerProcess) -> None:
    with server.connect() as wire:  # whatever is made once is made
        wire.bind("scale")
        wire.send(ping_frame(1), infer(1, row(1)))
        wire.receive_many(2)
    server.assert_at_rest()
    before = server.rss_nbytes()
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CROWD)]
    for sock in crowd:
        sock.sendall(ping_frame(1))
    for sock in crowd:
        sock.settimeout(WAIT_S)
        assert len(sock.recv(64)) == 32
    each = (server.rss_nbytes() - before) / CROWD
    print(f"{each:.0f} bytes an idle connection, {CROWD} of them")
    assert each <= CONNECTION_NBYTES
    for sock in crowd:
        sock.close()
    server.assert_at_rest()


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_nothing_is_left_after_the_server_was_killed() -> None:
    before = shared_memory()
    server = ServerProcess("scale")
    try:
        server.wait_ready()
        with server.connect() as wire:
            wire.bind("scale")
            wire.send(infer(1, row(1)))
            wire.result(1)
            worker = server.worker_pid
            server.process.kill()
            server.process.wait(WAIT_S)
            wait_for(lambda: not alive(worker))
    finally:
        server.close()
    assert shared_memory() == before


def alive(pid: int) -> bool:
    """Whether a process is there and not merely unreaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_without_descriptors_pauses_and_recovers() -> None:
    """The limit is set on the running process, so that it starts as ever."""
    with serving("scale") as server:
        held = [server.connect() for _ in range(3)]
        for wire in held:
            wire.send(ping_frame(1))
            wire.receive()
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.fds(), limits[1]))
        waiting = server.connect()
        waiting.send(ping_frame(2))
        server.wait_event("accept_paused")
        held[0].send(ping_frame(3))
        assert held[0].receive().rid == 3
        spent = cpu_s(server.pid)
        time.sleep(0.3)
        assert cpu_s(server.pid) - spent < 0.1
        held.pop().sock.close()
        assert waiting.receive().rid == 2
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        for wire in (*held, waiting):
            wire.sock.close()
        server.assert_at_rest()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_address_in_use_is_said_and_ends_the_server(server: ServerProcess) -> None:
    second = ServerProcess("scale", port=server.port)
    try:
        assert second.process.wait(WAIT_S) == 1
        [failure] = wait_for(lambda: second.events("server_failed"))
        assert f"cannot listen on tcp://127.0.0.1:{server.port}: Address already in use" in failure["reason"]
    finally:
        second.close()


def test_a_unix_socket_replaces_its_stale_file_and_takes_it_away(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with serving("scale", host="", unix_path=str(path)) as server:
        assert server.addresses == [f"unix://{path}"]
        with server.connect_unix() as wire:
            wire.bind("scale")
            wire.send(infer(1, row(2)))
            assert wire.result(1)[0] == 4
            second = ServerProcess("scale", host="", unix_path=str(path))
            try:
                assert second.process.wait(WAIT_S) == 1
            finally:
                second.close()
            wire.send(infer(2, row(3)))
            assert wire.result(2)[0] == 6
    assert not path.exists()
