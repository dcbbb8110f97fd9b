import select
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from trioserve.client._address import TcpAddress, UnixAddress
from trioserve.client._dial import Endpoint, dial, found_endpoints, literal_endpoint, unix_endpoint


def finish(steps: Generator[socket.socket, None, socket.socket]) -> socket.socket:
    while True:
        try:
            waiting = next(steps)
        except StopIteration as stop:
            return stop.value
        assert select.select([], [waiting], [], 5)[1]


@pytest.fixture
def listener() -> Generator[socket.socket, None, None]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_a_literal_address_needs_no_lookup() -> None:
    assert literal_endpoint(TcpAddress("127.0.0.1", 5)) == Endpoint(socket.AF_INET, ("127.0.0.1", 5))
    assert literal_endpoint(TcpAddress("::1", 5)) == Endpoint(socket.AF_INET6, ("::1", 5))
    assert literal_endpoint(TcpAddress("localhost", 5)) is None


def test_addresses_that_were_found_twice_are_tried_once() -> None:
    infos = socket.getaddrinfo("127.0.0.1", 5)
    assert len(infos) > 1
    assert found_endpoints(infos) == [Endpoint(socket.AF_INET, ("127.0.0.1", 5))]


def test_connects_without_blocking_and_without_delay(listener: socket.socket) -> None:
    with finish(dial([Endpoint(socket.AF_INET, listener.getsockname())])) as sock:
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getpeername() == listener.getsockname()


def test_goes_on_to_the_next_address(listener: socket.socket) -> None:
    dead = Endpoint(socket.AF_INET, ("127.0.0.1", free_port()))
    with finish(dial([dead, Endpoint(socket.AF_INET, listener.getsockname())])) as sock:
        assert sock.getpeername() == listener.getsockname()


def test_says_why_the_last_address_failed() -> None:
    with pytest.raises(ConnectionRefusedError):
        finish(dial([Endpoint(socket.AF_INET, ("127.0.0.1", free_port()))]))
    with pytest.raises(OSError, match="no address"):
        finish(dial([]))


def test_connects_to_unix_sockets(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(FileNotFoundError):
        finish(dial([unix_endpoint(UnixAddress(path))]))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        finish(dial([unix_endpoint(UnixAddress(path))])).close()


def test_an_address_that_cannot_be_tried_is_passed_over(listener: socket.socket) -> None:
    too_long = unix_endpoint(UnixAddress("/" + "x" * 300))
    finish(dial([too_long, Endpoint(socket.AF_INET, listener.getsockname())])).close()


def test_giving_up_closes_the_socket(listener: socket.socket) -> None:
    steps = dial([Endpoint(socket.AF_INET, listener.getsockname())])
    waiting = next(steps, None)
    if waiting is None:  # Connected at once: nothing to give up.
        pytest.skip("the loopback connected without waiting")
    steps.close()
    assert waiting.fileno() == -1
    assert sys.getrefcount(waiting) < 4
