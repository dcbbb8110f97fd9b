"""Both clients over TLS: what they trust, what they say when they do not, and that large answers come through."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.e2e.harness import ServerProcess, serving
from tests.tls.certificates import Pki
from trioserve.cli import main
from trioserve.client import RetryPolicy, TlsFailed, client_context, connect, sync
from trioserve.errors import PermissionDenied, Unauthenticated, Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server over TLS that asks for tokens."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"web infer {hashlib.sha256(b'one').hexdigest()}\n")
    config = {"tls": {"certificate": pki.server}, "auth": {"tokens": str(tokens), "failure_pause_s": 0.1}}
    with serving("scale", "image", **config) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    [address] = [address for address in server.addresses if "127.0.0.1" in address]
    return address


def test_addresses_say_that_it_is_encrypted(url: str) -> None:
    assert url.startswith("tls://")


async def test_the_asynchronous_client(url: str, pki: Pki) -> None:
    with trio.fail_after(20):
        async with connect(url, token="one", tls=client_context(pki.ca)) as client:
            image = np.ones((3, 224, 224), np.float32)
            results: list[object] = []

            async def ask(number: int) -> None:
                results.append(np.asarray(await client.infer("image", image * number)).sum())

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(ask, number)
            assert len(results) == 8
            many = await client.infer_many("scale", np.ones((3000, 4), np.float32))
            assert not many.failures
            with pytest.raises(PermissionDenied):
                await client.statistics()
            assert (await client.models())[0]["ready"]


def test_the_blocking_client_with_threads(url: str, pki: Pki) -> None:
    secure = url.replace("tls://", "trioserves://")
    with sync.connect(secure, token="one", tls=client_context(pki.ca), timeout_s=20) as client:
        image = np.ones((3, 224, 224), np.float32)

        def ask() -> None:
            for _ in range(5):
                client.infer("image", image)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert not client.infer_many("scale", np.ones((3000, 4), np.float32)).failures


@pytest.mark.parametrize("token", [None, "two"])
def test_a_wrong_token(url: str, pki: Pki, token: str | None) -> None:
    with (
        pytest.raises(Unauthenticated),
        sync.connect(url, token=token, tls=client_context(pki.ca), timeout_s=10) as client,
    ):
        client.models()


def test_an_authority_that_is_not_trusted(url: str) -> None:
    with pytest.raises(TlsFailed, match="certificate") as caught:
        sync.connect(url, timeout_s=10)
    assert not caught.value.retryable


def test_another_authority(url: str, pki: Pki) -> None:
    with pytest.raises(TlsFailed, match="unable to get local issuer"):
        sync.connect(url, tls=client_context(pki.stranger), timeout_s=10)


def test_plain_to_an_encrypted_port(url: str) -> None:
    with (
        pytest.raises(Unavailable, match="tls://"),
        sync.connect(url.replace("tls", "tcp"), retry=RetryPolicy(max_attempts=1), timeout_s=10) as client,
    ):
        client.models()


def test_encrypted_to_a_plain_port(pki: Pki) -> None:
    """A server without TLS answers the first bytes of a handshake with an alert, others with text."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TlsFailed, match="does not speak TLS"):
            sync.connect(f"tls://127.0.0.1:{port}", tls=client_context(pki.ca), timeout_s=10)
        thread.join(10)


def test_a_handshake_that_never_ends(pki: Pki) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(Unavailable, match="no answer"):
            sync.connect(f"tls://127.0.0.1:{port}", retry=RetryPolicy(connect_timeout_s=0.2), timeout_s=10)


def test_what_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="tls://"):
        connect("tcp://127.0.0.1", tls=client_context())
    for token in ("", "x" * 4097):
        with pytest.raises(ValueError, match="token: expected"):
            connect("tcp://127.0.0.1", token=token)


def test_the_commands(
    url: str, pki: Pki, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    options = ["--ca-file", pki.ca, "--token-file", str(token)]
    assert main(["models", url, *options]) == 0
    assert "scale" in capsys.readouterr().out
    assert main(["infer", "scale", "--url", url, "--json", "[1, 2, 3, 4]", *options]) == 0
    assert "[2.0, 4.0, 6.0, 8.0]" in capsys.readouterr().out
    monkeypatch.setenv("TRIOSERVE_TOKEN", "one")
    asked = ["--hello", "--infer", "scale", "-t", "[[1, 2, 3, 4]]", "--output", "json"]
    assert main(["nc", url, "--ca-file", pki.ca, *asked]) == 0
    assert "RESULT" in capsys.readouterr().out
    assert main(["nc", url, "--ping", "--half-close"]) == 2
    assert main(["models", url]) == 1
    assert "cannot trust" in capsys.readouterr().err
