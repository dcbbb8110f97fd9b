"""Connections over TLS: in virtual time over a network in memory, and one server with real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.e2e.harness import WAIT_S, ServerProcess, Wire, infer, row, serving, wait_for
from tests.tls.certificates import Pki
from tests.transport.virtual import BIG, VirtualClient, VirtualServer, virtual_server
from trioserve.config import ServerLimits, TlsConfig
from trioserve.testing import MemoryClient
from trioserve.tls import client_context
from trioserve.transport import Certificates, Entrance
from trioserve_protocol import (
    Error,
    ErrorCode,
    FrameType,
    Result,
    Tag,
    bind_frame,
    frame,
    frame_bytes,
    ping_frame,
    tlv,
)


class TlsClient:
    """A client's end of TLS over a `MemoryClient`, with that one's methods for the group's tests."""

    def __init__(self, end: MemoryClient, context: ssl.SSLContext) -> None:
        self.end = end
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def step(self) -> bool:
        """One step of the handshake; whether it is complete."""
        self._in.write(self.end.read())
        done = False
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            done = True
        self.end.send(self._out.read())
        return done

    def send(self, data: bytes) -> None:
        """Encrypts and sends."""
        self.tls.write(data)
        self.end.send(self._out.read())

    def finish(self) -> None:
        """Says that nothing more comes."""
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()
        self.end.send(self._out.read())

    def read(self, nbytes: int = 1 << 62) -> bytes:
        """Takes and decrypts what has come."""
        self._in.write(self.end.read(nbytes))
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while part := self.tls.read(1 << 16):
                data += part
        return data


@pytest.fixture
def entrance(pki: Pki) -> Entrance:
    return Entrance(tls=Certificates(TlsConfig(certificate=pki.server), 0))


def connect(server: VirtualServer, entrance: Entrance) -> VirtualClient:
    return server.connect(bound=False, entrance=entrance, address="192.0.2.1")


async def secured(server: VirtualServer, entrance: Entrance, pki: Pki) -> VirtualClient:
    """A client after the handshake, both models bound."""
    client = connect(server, entrance)
    tls = TlsClient(client.end, client_context(pki.ca))
    for _ in range(5):
        if tls.step():
            break
        await trio.sleep(0.001)
    client.end = tls  # type: ignore[assignment]
    client.send(bind_frame(1 << 40, 1, "small"), bind_frame((1 << 40) + 1, 2, "big"))
    return client


async def test_requests_in_one_record_many_records_and_pieces(
    entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    big = np.arange(BIG, dtype=np.float32)
    async with virtual_server() as server:
        client = await secured(server, entrance, pki)
        client.send(*(infer(rid, row(rid)) for rid in range(1, 41)))
        client.send(infer(50, big, handle=2), infer(51, big, handle=2), infer(52, row(2)))
        pieces = infer(60, row(6)) + infer(61, big, handle=2)
        for at in range(0, len(pieces), 7_001):
            client.send(pieces[at : at + 7_001])
            await trio.sleep(0.001)
        await trio.sleep(1)
        outcomes = client.outcomes()
        assert sorted(outcomes) == [*range(1, 41), 50, 51, 52, 60, 61]
        for rid, event in outcomes.items():
            assert isinstance(event, Result)
            payload = np.frombuffer(event.payload, np.float32)
            assert payload[1 if rid in (50, 51, 61) else 0] == {52: 4, 60: 12}.get(
                rid, 2 * rid if rid < 50 else 2
            )
        assert server.group.statistics()["authentication"]["handshakes"] == {"TLSv1.3": 1}
        client.end.finish()
        await trio.sleep(0.1)
        assert server.group.connections == 0
        server.assert_at_rest()


async def test_a_half_close_with_replies_pending(
    entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    async with virtual_server(service_ns=lambda rows: 100_000_000) as server:
        client = await secured(server, entrance, pki)
        client.send(infer(1, row(1)))
        client.end.finish()
        await trio.sleep(0.05)
        assert server.group.connections == 1
        await trio.sleep(0.1)
        assert isinstance(client.outcomes()[1], Result)
        assert server.group.connections == 0


async def test_a_stream_that_is_cut_off_cancels(
    entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    """It may have been cut off by anybody; only the other end can say that it was the end."""
    async with virtual_server(service_ns=lambda rows: 100_000_000) as server:
        client = await secured(server, entrance, pki)
        client.send(infer(1, row(1)))
        await trio.sleep(0.01)
        client.end.end.finish()  # type: ignore[attr-defined]
        await trio.sleep(0.01)
        assert server.group.connections == 0
        assert server.group.statistics()["closed"] == {"disconnected": 1}
        await trio.sleep(1)
        server.assert_at_rest()


async def test_a_reader_that_does_not_read_is_waited_for(
    entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = await secured(server, entrance, pki)
        await trio.sleep(0.01)
        client.read()
        memory: MemoryClient = client.end.end  # type: ignore[attr-defined]
        memory.room_nbytes = 10_000
        for rid in range(1, 5):
            client.send(infer(rid, bytes(4 * BIG), handle=2))
            await trio.sleep(0.01)
        assert server.group.unsent_nbytes > 4 * 4 * BIG - 20_000
        client.send(ping_frame(99))
        while memory.unread:
            client.read()
            await trio.sleep(0.01)
        assert sorted(client.outcomes()) == [1, 2, 3, 4]
        order = [event.rid for event in client.events]
        assert order.index(99) < order.index(4), "a PING passes replies that wait"
        server.assert_at_rest()


async def test_a_flood_over_tls_is_paused_and_goes_on(
    entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    async with virtual_server(ServerLimits(control_frames_per_s=100)) as server:
        client = await secured(server, entrance, pki)
        await trio.sleep(1)
        client.send(b"".join(ping_frame(rid) for rid in range(1, 401)))
        await trio.sleep(0.1)
        assert 90 < len(client.read()) < 400
        await trio.sleep(4)
        assert [event.rid for event in client.read()] == list(range(1, 401))


@pytest.mark.parametrize("how", ["silence", "drip", "half a hello"])
async def test_a_handshake_that_stalls(
    how: str, entrance: Entrance, pki: Pki, autojump_clock: MockClock
) -> None:
    async with virtual_server(ServerLimits(unauthenticated_s=2)) as server:
        client = connect(server, entrance)
        hello = TlsClient(MemoryClient(server.network, 1 << 20), client_context(pki.ca))
        hello.step()
        data = bytes(hello.end.to_server)
        for at in range(19):
            if how == "drip":
                client.send(data[at : at + 1])
            elif how == "half a hello" and not at:
                client.send(data[: len(data) // 2])
            await trio.sleep(0.1)
        assert server.group.connections == 1
        await trio.sleep(0.4)
        assert server.group.connections == 0
        assert server.group.statistics()["authentication"]["handshakes"] == {"timeout": 1}


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (ping_frame(1), b"tls://"),
        (infer(1, bytes(80_000), handle=2), b"tls://"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x00\x05hello", b"\x15\x03"),
        (b"\x16\x03\x01\x00\xff" + bytes(300), b"\x15\x03"),
    ],
)
async def test_who_does_not_speak_tls_is_told(
    first: bytes, answer: bytes, entrance: Entrance, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        client.send(first)
        await trio.sleep(0.01)
        assert answer in client.end.read()
        await trio.sleep(2)
        assert server.group.connections == 0
        assert server.group.statistics()["authentication"]["unauthenticated"] == 0


# ---------------------------------------------------------------- with real sockets


@pytest.fixture(scope="module")
def server(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks for certificates and tokens."""
    folder = tmp_path_factory.mktemp("tls")
    tokens = folder / "tokens"
    tokens.write_text(f"web infer {hashlib.sha256(b'one').hexdigest()}\n")
    config = {
        "tls": {"certificate": pki.server, "client_ca": pki.ca},
        "auth": {"tokens": str(tokens), "failure_pause_s": 0.1},
        "unix_path": str(folder / "socket"),
    }
    with serving("scale", "image", **config) as server:
        yield server


def wire(server: ServerProcess, context: ssl.SSLContext) -> Wire:
    [address] = [address for address in server.addresses if address.startswith("tls://")]
    sock = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), WAIT_S)
    return Wire(context.wrap_socket(sock, server_hostname="localhost"))


@pytest.mark.e2e
@pytest.mark.slow
def test_certificates_tokens_and_large_bodies(server: ServerProcess, pki: Pki) -> None:
    hello = frame_bytes(frame(FrameType.HELLO, rid=1, meta=tlv(Tag.AUTH, b"one")))
    with wire(server, client_context(pki.ca, pki.client)) as client:
        client.send(hello, bind_frame(2, 1, "image"))
        client.receive_many(2)
        for rid in range(3, 13):
            client.send(infer(rid, np.full(150_528, rid, np.float32)))
        answers = sorted(client.receive_many(10), key=lambda event: event.rid)
        assert [event.rid for event in answers] == list(range(3, 13))
        assert all(isinstance(event, Result) for event in answers)
    with wire(server, client_context(pki.ca, pki.client)) as client:
        client.send(bind_frame(2, 1, "image"))
        client.expect_error(ErrorCode.UNAUTHENTICATED, 0)
        assert not client.expect_closed()
    with pytest.raises((ssl.SSLError, ConnectionResetError)), wire(server, client_context(pki.ca)) as client:
        client.receive()  # TLS 1.3: what is wrong with a client's certificate is said after the handshake
    wait_for(lambda: server.fds() == server.idle_fds)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_unix_socket_is_as_it_was(server: ServerProcess) -> None:
    with server.connect_unix() as client:
        client.send(ping_frame(1), bind_frame(1, 1, "scale"))
        client.receive()
        assert isinstance(client.receive(), Error)


def test_a_new_certificate_is_used_and_a_broken_one_is_not(pki: Pki, tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_bytes(Path(pki.server).read_bytes())
    certificates = Certificates(TlsConfig(certificate=str(file)), 0)
    first = certificates.current(0)
    second = 1_000_000_000
    assert certificates.current(second) is first
    file.write_bytes(Path(pki.wrong_name).read_bytes())
    renewed = certificates.current(2 * second)
    assert renewed is not first
    file.write_text("nonsense")
    assert certificates.current(3 * second) is renewed
