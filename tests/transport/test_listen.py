"""Listening sockets: what is bound, what is refused, what is left behind."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from trioserve.transport import Listener, listen_tcp, listen_unix
from trioserve.transport import _listen as module


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = open_fds()
    yield
    assert open_fds() == before


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def port_of(listener: Listener) -> int:
    return int(listener.address.rpartition(":")[2])


@contextmanager
def all_closed(listeners: list[Listener]) -> Iterator[None]:
    try:
        yield
    finally:
        for listener in listeners:
            listener.close()


async def test_port_zero_takes_one_free_port_for_all_addresses() -> None:
    listeners = await listen_tcp("localhost", 0, 8)
    with all_closed(listeners):
        assert len({port_of(listener) for listener in listeners}) == 1
        assert any(listener.address.startswith("tcp://127.0.0.1:") for listener in listeners)


async def test_an_ipv6_address_is_shown_in_brackets() -> None:
    try:
        listeners = await listen_tcp("::1", 0, 8)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with all_closed(listeners):
        assert listeners[0].address.startswith("tcp://[::1]:")


async def test_until_it_runs_clients_are_refused() -> None:
    [listener] = await listen_tcp("127.0.0.1", 0, 8)
    with listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(listener)))


async def test_a_taken_port_is_an_error_that_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(OSError, match="in use") as failure:
            await listen_tcp("127.0.0.1", other.getsockname()[1], 8)
        assert failure.value.errno == errno.EADDRINUSE


async def test_an_unknown_host() -> None:
    with pytest.raises(OSError, match=r"."):
        await listen_tcp("no such host.invalid", 0, 8)


def test_an_address_that_this_machine_does_not_have_is_left_out_if_there_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = module._bound

    def bound(family: int, address: tuple[str | int, ...]) -> socket.socket:
        if address[0] == "192.0.2.1":
            raise OSError(errno.EADDRNOTAVAIL, "not here")
        return real(family, address)

    monkeypatch.setattr(module, "_bound", bound)
    here, gone = (socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET, ("192.0.2.1", 0))
    listeners = module._bind_all([gone, here], 0, 8, "tcp")
    with all_closed(listeners):
        assert len(listeners) == 1
    with pytest.raises(OSError, match="not here"):
        module._bind_all([gone], 0, 8, "tcp")


async def test_a_free_port_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one the first address got may be taken on the second."""
    real, failures = module._bind_all, [1, 1]

    def bind_all(*arguments: object) -> list[Listener]:
        if failures:
            failures.pop()
            raise OSError(errno.EADDRINUSE, "in use")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_bind_all", bind_all)
    listeners = await listen_tcp("127.0.0.1", 0, 8)
    with all_closed(listeners):
        assert not failures
    failures.append(1)
    with pytest.raises(OSError, match="in use"):
        await listen_tcp("127.0.0.1", 1, 8)


# ---------------------------------------------------------------- Unix sockets


def test_a_stale_socket_is_replaced_and_the_file_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with listen_unix(str(path), 8) as listener:
        assert listener.address == f"unix://{path}"
        assert path.is_socket()
    assert not path.exists()
    listener.close()


def test_any_other_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError, match="not a socket"):
        listen_unix(str(path), 8)
    assert path.read_text() == "data"


def test_a_socket_that_is_served_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(OSError, match="another process"):
            listen_unix(str(path), 8)


def test_a_file_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = listen_unix(str(path), 8)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        listener.close()
        assert path.is_socket()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        listen_unix(str(tmp_path / "nowhere" / "socket"), 8)


# ---------------------------------------------------------------- accepting


class FakeSocket:
    """A listening socket whose `accept` does what a test says."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)

    def accept(self) -> tuple[socket.socket, None]:
        outcome = self.outcomes.pop(0) if self.outcomes else BlockingIOError()
        if isinstance(outcome, OSError):
            raise outcome
        assert isinstance(outcome, socket.socket)
        return outcome, None


def accepted(*outcomes: object) -> int:
    served: list[socket.socket] = []
    module._accept_burst(FakeSocket(*outcomes), served.append)  # type: ignore[arg-type]
    for sock in served:
        assert not sock.getblocking()
        sock.close()
    return len(served)


def pair() -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours


@pytest.mark.parametrize("number", sorted(module._OF_ONE_CONNECTION))
def test_a_connection_that_failed_before_it_was_accepted_is_nobodys_problem(number: int) -> None:
    assert accepted(OSError(number, "gone"), pair(), OSError(number, "gone"), pair()) == 2


def test_a_broken_connection_is_closed_and_the_next_one_served() -> None:
    closed = socket.socket()
    closed.close()
    assert accepted(closed, pair()) == 1


def test_other_errors_are_errors() -> None:
    with pytest.raises(OSError, match="bug"):
        accepted(OSError(errno.EBADF, "bug"))


def test_a_burst_is_bounded() -> None:
    many = [OSError(errno.ECONNABORTED, "gone")] * (module.ACCEPT_BURST + 1)
    listener = FakeSocket(*many)
    module._accept_burst(listener, lambda _: None)  # type: ignore[arg-type]
    assert len(listener.outcomes) == 1


async def test_connections_are_set_up_for_small_frames_and_vanished_peers() -> None:
    [listener] = await listen_tcp("127.0.0.1", 0, 8)
    send, receive = trio.open_memory_channel[socket.socket](8)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, send.send_nowait)
            with (
                socket.create_connection(("127.0.0.1", port_of(listener))),
                await receive.receive() as served,
            ):
                assert not served.getblocking()
                assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            nursery.cancel_scope.cancel()


async def test_accepting_rests_when_there_is_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXHAUSTED_PAUSE_S", 0.01)
    [listener] = await listen_tcp("127.0.0.1", 0, 8)
    send, receive = trio.open_memory_channel[socket.socket](8)
    failures = [errno.EMFILE, errno.ENFILE]

    def serve(sock: socket.socket) -> None:
        if failures:
            sock.close()
            raise OSError(failures.pop(), "too many open files")
        send.send_nowait(sock)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, serve)
            clients = [socket.create_connection(("127.0.0.1", port_of(listener))) for _ in range(3)]
            (await receive.receive()).close()
            for client in clients:
                client.close()
            nursery.cancel_scope.cancel()
    assert not failures


async def test_who_was_connected_when_accepting_ended_is_still_served() -> None:
    """As far as its kernel knows the client is connected: a reset would look like a failure of the server."""
    [listener] = await listen_tcp("127.0.0.1", 0, 8)
    served: list[socket.socket] = []
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, served.append)
            clients = [socket.create_connection(("127.0.0.1", port_of(listener))) for _ in range(5)]
            nursery.cancel_scope.cancel()
    assert len(served) == 5
    for sock in (*served, *clients):
        sock.close()
