"""TLS over a pair of real sockets, none of which ever waits."""

from __future__ import annotations

import hashlib
import random
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.tls.certificates import Pki
from trioserve.config import TlsConfig
from trioserve.tls import ALPN, TlsStream, client_context
from trioserve.transport import server_context


class Ends(NamedTuple):
    client: TlsStream
    server: TlsStream


@pytest.fixture
def ends(pki: Pki) -> Iterator[Ends]:
    """Both ends, before the handshake."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    pair = Ends(
        TlsStream(ours, client_context(pki.ca), server_side=False, server_hostname="localhost"),
        TlsStream(theirs, server_context(TlsConfig(certificate=pki.server)), server_side=True),
    )
    yield pair
    for end in pair:
        end.close()


def shake(ends: Ends) -> None:
    done: set[TlsStream] = set()
    for _ in range(10):
        for end in ends:
            if end not in done:
                try:
                    end.handshake()
                    done.add(end)
                except BlockingIOError:
                    pass
        if len(done) == 2:
            return
    raise AssertionError("no end of it")


def received(end: TlsStream, size: int = 1 << 20) -> bytes:
    """What can be had now, in one read."""
    buffer = bytearray(size)
    return bytes(buffer[: end.recv_into(memoryview(buffer))])


def test_both_ways_and_nothing_waits(ends: Ends) -> None:
    shake(ends)
    assert ends.server.version == "TLSv1.3"
    for end in ends:
        with pytest.raises(BlockingIOError):
            received(end)
    assert ends.client.send(b"ask") == 3
    assert received(ends.server) == b"ask"
    assert ends.server.sendmsg([b"ans", bytearray(b"w"), memoryview(b"er")]) == 6
    assert received(ends.client) == b"answer"


def test_the_protocol_is_agreed(ends: Ends) -> None:
    shake(ends)
    assert {end._tls.selected_alpn_protocol() for end in ends} == {ALPN}


@pytest.mark.parametrize("step", [1, 7, 16_384, 100_000])
def test_what_a_small_buffer_leaves_is_announced(ends: Ends, step: int) -> None:
    """The poller knows nothing of it: whoever reads must be told, or it waits for ever."""
    shake(ends)
    told: list[int] = []
    ends.server.on_more = lambda: told.append(1)
    data = random.Random(1).randbytes(40_000)
    assert ends.client.send(data) == len(data)
    got = received(ends.server, step)
    while told:
        told.clear()
        got += received(ends.server, step)
    with pytest.raises(BlockingIOError):
        ends.server.peek(1)
    assert got == data


def test_a_full_kernel_keeps_a_bounded_rest_and_the_bytes_in_order(ends: Ends) -> None:
    shake(ends)
    data = random.Random(2).randbytes(4 << 20)
    taken = ends.client.send(data)
    assert 0 < taken < len(data)
    assert 0 < ends.client.unsent_nbytes < 2 * 65_536
    with pytest.raises(BlockingIOError):
        ends.client.send(data[taken:])
    digest, got = hashlib.sha256(), 0
    while got < len(data):
        try:
            part = received(ends.server, 100_000)
        except BlockingIOError:
            part = b""
        digest.update(part)
        got += len(part)
        if ends.client.flush() and taken < len(data):
            taken += ends.client.send(memoryview(data)[taken:])
    assert digest.digest() == hashlib.sha256(data).digest()


def test_a_half_close_leaves_the_other_half(ends: Ends) -> None:
    shake(ends)
    ends.client.send(b"the last")
    ends.client.shutdown(socket.SHUT_WR)
    assert received(ends.server) == b"the last"
    assert ends.server.more, "the end is something to be read"
    assert received(ends.server) == received(ends.server) == b""
    assert ends.server.send(b"but this") == 8
    assert received(ends.client) == b"but this"
    ends.server.close()
    assert received(ends.client) == b""


def test_a_stream_that_is_cut_off_is_no_end(ends: Ends) -> None:
    shake(ends)
    ends.client.send(b"half of it")
    ends.client.sock.shutdown(socket.SHUT_WR)  # type: ignore[attr-defined]
    assert received(ends.server) == b"half of it"
    with pytest.raises(ssl.SSLEOFError):
        received(ends.server)


def test_a_changed_byte_is_noticed(ends: Ends) -> None:
    shake(ends)
    ends.client.send(b"x" * 100)
    raw = bytearray(ends.server.sock.recv(1000))
    raw[50] ^= 1
    ends.server._received.write(raw)
    ends.server.more = True
    with pytest.raises(ssl.SSLError):
        received(ends.server)


def test_views_are_filled_in_turn(ends: Ends) -> None:
    shake(ends)
    ends.client.send(b"abcdefgh")
    views = [memoryview(bytearray(n)) for n in (3, 2, 10)]
    assert ends.server.recvmsg_into(views)[0] == 8
    assert bytes(views[0]) + bytes(views[1]) + bytes(views[2][:3]) == b"abcdefgh"
    with pytest.raises(BlockingIOError):
        ends.server.recvmsg_into(views)


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(200), b"\x16\x03\x01\xff\xff"]
)
def test_garbage_in_the_handshake(ends: Ends, garbage: bytes) -> None:
    ends.client.sock.send(garbage)
    with pytest.raises((ssl.SSLError, BlockingIOError)):
        ends.server.handshake()
    ends.client.sock.close()
    with pytest.raises(OSError):
        ends.server.handshake()


@pytest.mark.parametrize(
    ("certificate", "words"),
    [("stranger", "self-signed"), ("wrong_name", "Hostname mismatch"), ("client", "Hostname mismatch")],
)
def test_a_server_that_is_not_trusted(pki: Pki, certificate: str, words: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        context = server_context(TlsConfig(certificate=getattr(pki, certificate)))
        ends = Ends(
            TlsStream(ours, client_context(pki.ca), server_side=False, server_hostname="localhost"),
            TlsStream(theirs, context, server_side=True),
        )
        with pytest.raises(ssl.SSLCertVerificationError, match=words):
            shake(ends)
