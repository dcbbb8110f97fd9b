"""The blocking client against a scripted server in a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from tests.client.fake_server import SCALE, WIDE, FakeServer, in_thread, listen
from trioserve.client import ClientClosed, ConnectFailed, ConnectionLost, RequestClass, RetryPolicy, _pump
from trioserve.client.sync import SyncClient, connect
from trioserve.errors import DeadlineExceeded, ModelNotFound, Shed, TrioserveError
from trioserve_protocol import (
    Bind,
    Cancel,
    ErrorCode,
    Flag,
    Infer,
    InferMany,
    bound_frame,
    error_frame,
    goaway_frame,
)

X = np.arange(4, dtype=np.float32)
FAST = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)
NO_RETRY = RetryPolicy(max_attempts=1)


def in_threads(count: int, call: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count), timeout=10))


def test_the_api_is_that_of_the_asynchronous_client() -> None:
    with in_thread() as server, connect(server.url, timeout_s=5) as client:
        assert client.infer("scale", X).tolist() == [0, 2, 4, 6]
        assert client.infer("upper", ["a", "b"]).tolist() == [b"A", b"B"]
        x = np.arange(4000, dtype=np.float32).reshape(-1, 4)
        assert np.array_equal(client.infer_many("scale", x).output, x * 2)
        assert client.infer_many("lengths", ["a", "bc"]).output.tolist() == [1, 2]
        assert client.infer_with_timing("scale", X, priority=RequestClass.CRITICAL_PLUS).output.shape == (4,)
        assert client.signature("wide") == WIDE
        assert 0 < client.ping() < 5
        assert client.models() == {"asked": {"op": "models"}}
        assert client.statistics() == {"asked": {"op": "statistics"}}
        assert client.health() == {"asked": {"op": "health"}}
        with pytest.raises(ModelNotFound):
            client.infer("nope", X)


def test_threads_share_one_connection() -> None:
    with in_thread() as server, connect(server.url) as client:

        def call(number: int) -> bool:
            return all(
                client.infer("scale", X + number + 100 * turn)[0] == 2 * (number + 100 * turn)
                for turn in range(20)
            )

        assert all(in_threads(8, call))
        assert len(server.peers) == 1


def test_threads_with_large_tensors_do_not_block_each_other() -> None:
    with in_thread() as server, connect(server.url) as client:
        x = np.random.default_rng(1).random((10, 50_000), np.float32)

        def call(number: int) -> bool:
            if number % 2:
                return bool(client.infer("scale", X)[1] == 2)
            return np.array_equal(client.infer("wide", x), x + 1)

        assert all(in_threads(6, call))


def test_a_unix_socket(tmp_path: Path) -> None:
    with in_thread(path=str(tmp_path / "s")) as server, connect(server.url) as client:
        assert client.infer("scale", X).shape == (4,)
    with in_thread(path=f"@trioserve-test-{os.getpid()}") as server, connect(server.url) as client:
        assert client.infer("scale", X).shape == (4,)


def test_a_name_is_looked_up() -> None:
    with in_thread() as server, connect(server.url.replace("127.0.0.1", "localhost")) as client:
        assert client.infer("scale", X).shape == (4,)


def test_a_timeout_is_sent_along_and_cancels() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infer: Infer = await peer.next(Infer)
        seen.append(infer.timeout_us)
        assert await peer.next(Cancel) == Cancel(infer.rid, 1)
        second: Infer = await peer.next(Infer)
        seen.append(second.timeout_us)
        await peer.result(infer.rid, X[None])
        await peer.result(second.rid, X[None] + 1)

    seen: list[int] = []
    with in_thread(script) as server, connect(server.url, timeout_s=60) as client:
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="timeout_s has passed"):
            client.infer("scale", X, timeout_s=0.03)
        assert time.monotonic() - started_s >= 0.03
        assert client.infer("scale", X).tolist() == (X + 1).tolist()
    assert 0 < seen[0] <= 30_000
    assert 50_000_000 < seen[1] <= 60_000_000


def test_a_follower_too_keeps_its_timeout() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        leader: Infer = await peer.next(Infer)
        leading.set()
        follower: Infer = await peer.next(Infer)
        assert await peer.next(Cancel) == Cancel(follower.rid, 1)
        await peer.result(leader.rid, X[None])
        await peer.next()

    leading = threading.Event()
    with in_thread(script) as server, connect(server.url) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.infer, "scale", X)
        assert leading.wait(5)
        with pytest.raises(DeadlineExceeded):
            client.infer("scale", X, timeout_s=0.02)
        assert first.result(5).tolist() == X.tolist()


def test_when_the_leader_is_done_a_follower_leads() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infers = [await peer.next(Infer) for _ in range(3)]
        for infer in infers:
            await peer.result(infer.rid, X[None])
            await anyio.sleep(0.01)  # Each answer wakes its thread alone; none may be left without a reader.

    with in_thread(script) as server, connect(server.url) as client:
        assert len(in_threads(3, lambda _: client.infer("scale", X))) == 3


def test_closing_ends_the_calls_of_other_threads_and_leaves_nothing_open() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        for _ in range(2):
            await peer.next(Infer)
        in_flight.set()
        assert await peer.next(Cancel) == Cancel(0, 1)
        assert await peer.next() is None

    in_flight = threading.Event()
    with in_thread(script) as server:
        client = connect(server.url)
        pump = client._pumps[-1]
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(client.infer, "scale", X) for _ in range(2)]
            assert in_flight.wait(5)
            client.close()
            for call in calls:
                with pytest.raises(ClientClosed):
                    call.result(5)
        client.close()
        with pytest.raises(ClientClosed):
            client.infer("scale", X)
        assert pump.link.sock.fileno() == -1
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.eventfd_read(pump._wake_fd)


def test_retries_and_reconnects_as_the_asynchronous_client() -> None:
    async def script(server: FakeServer) -> None:
        first = await server.accept()
        await first.bound(SCALE)
        infer: Infer = await first.next(Infer)
        await first.send(error_frame(infer.rid, ErrorCode.SHED, retry_after_us=5_000))
        assert (await first.next(Infer)).flags & Flag.RETRY
        first.reset()
        second = await server.accept()
        bind: Bind = await second.next(Bind)
        infer = await second.next(Infer)
        await second.send(bound_frame(bind.rid, bind.handle, SCALE))
        await second.result(infer.rid, X[None])
        await second.send(goaway_frame(1))
        await (await server.accept()).serve()

    with in_thread(script) as server, connect(server.url, retry=FAST) as client:
        assert client.infer("scale", X).tolist() == X.tolist()
        assert client.infer("scale", X).tolist() == (X * 2).tolist()
        assert len(server.peers) == 3


def test_goaway_in_the_middle_of_infer_many_loses_no_row() -> None:
    async def script(server: FakeServer) -> None:
        old = await server.accept()
        await old.bound(SCALE)
        first: InferMany = await old.next(InferMany)
        await old.next(InferMany)
        await old.send(goaway_frame(first.rows))
        await old.results(first.rid, np.frombuffer(first.payload, np.float32).reshape(-1, 4) * 2)
        await (await server.accept()).serve()

    x = np.arange(4000, dtype=np.float32).reshape(-1, 4)
    with in_thread(script) as server, connect(server.url) as client:
        many = client.infer_many("scale", x)
        assert many.ok.all()
        assert np.array_equal(many.output, x * 2)


def test_a_connection_that_ended_while_idle_is_replaced_without_a_failed_call() -> None:
    async def script(server: FakeServer) -> None:
        first = await server.accept()
        await first.bound(SCALE)
        await first.result((await first.next(Infer)).rid, X[None])
        first.close()
        closed.set()
        await (await server.accept()).serve()

    closed = threading.Event()
    with in_thread(script) as server, connect(server.url, retry=NO_RETRY) as client:
        client.infer("scale", X)
        assert closed.wait(5)
        assert client.infer("scale", X).tolist() == [0, 2, 4, 6]


def test_without_retries_errors_are_the_callers_to_see() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        await peer.send(error_frame((await peer.next(Infer)).rid, ErrorCode.SHED))
        await peer.next(Infer)
        peer.reset()

    with in_thread(script) as server, connect(server.url, retry=NO_RETRY) as client:
        with pytest.raises(Shed):
            client.infer("scale", X)
        with pytest.raises(ConnectionLost):
            client.infer("scale", X)


def test_no_server_is_a_typed_retryable_error() -> None:
    server = listen()
    server.close()
    with pytest.raises(ConnectFailed, match="Connection refused"):
        connect(server.url)


def test_threads_share_one_attempt_to_reconnect() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        for _ in range(4):
            await peer.next(Infer)
        server.sock.close()
        peer.close()

    with in_thread(script) as server, connect(server.url, retry=FAST) as client:

        def call(_: int) -> type[BaseException]:
            with pytest.raises(TrioserveError) as caught:
                client.infer("scale", X, timeout_s=5)
            return caught.type

        assert set(in_threads(4, call)) <= {ConnectFailed, ConnectionLost}


def test_reconnecting_keeps_the_callers_timeout() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        peer.close()

    patient = RetryPolicy(first_delay_s=30, max_delay_s=30)
    with in_thread(script) as server, connect(server.url, retry=patient) as client:
        while client._pumps[-1].link.session.ended is None:  # Until the end of the connection has arrived.
            client._pumps[-1].look()
        server.sock.close()
        with pytest.raises(ConnectFailed):
            client.infer("scale", X, timeout_s=0.05)
        with pytest.raises(DeadlineExceeded):
            client.infer("scale", X, timeout_s=0.05)
        with client._connecting, pytest.raises(DeadlineExceeded):
            client.infer("scale", X, timeout_s=0.01)


def test_connecting_gives_up_in_time() -> None:
    with in_thread(_sleep_forever) as server:
        server.sock.listen(0)
        policy = RetryPolicy(connect_timeout_s=0.05)
        with ExitStack() as clients:
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
                _connect_often(server.url, policy, clients)
            with pytest.raises(DeadlineExceeded):
                connect(server.url, timeout_s=0.01)


def _connect_often(url: str, policy: RetryPolicy, clients: ExitStack) -> None:
    for _ in range(10):
        clients.enter_context(connect(url, retry=policy))


async def _sleep_forever(server: FakeServer) -> None:
    await anyio.sleep_forever()


def test_a_client_closed_while_it_connects_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread() as server:
        client = connect(server.url)
        real_connect = SyncClient._connect

        def close_meanwhile(self: SyncClient, deadline_s: float) -> Any:
            sock = real_connect(self, deadline_s)
            self.close()
            return sock

        client._pumps[-1].link.session.draining = True
        monkeypatch.setattr(SyncClient, "_connect", close_meanwhile)
        with pytest.raises(ClientClosed):
            client.infer("scale", X)


def test_an_interrupt_in_a_call_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infer: Infer = await peer.next(Infer)
        assert await peer.next(Cancel) == Cancel(infer.rid, 1)
        await peer.result((await peer.next(Infer)).rid, X[None])

    with in_thread(script) as server, connect(server.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(_pump, "_left_ms", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.infer("scale", X)
        assert client.infer("scale", X).tolist() == X.tolist()


def test_an_interrupt_in_the_middle_of_a_read_costs_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread() as server, connect(server.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(client._pumps[-1].link, "feed", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.infer("scale", X)
        assert client.infer("scale", X).tolist() == [0, 2, 4, 6]
        assert len(server.peers) == 2


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt
