"""The asynchronous client when requests are shed and connections break, under Trio and under asyncio."""

from __future__ import annotations

import socket
import subprocess
import sys

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from tests.client.fake_server import (
    LENGTHS,
    SCALE,
    FakeServer,
    bound_as,
    listen,
    on_both,
    scripted,
    serving,
)
from trioserve.client import (
    Client,
    ConnectFailed,
    ConnectionLost,
    RequestClass,
    RetryPolicy,
    connect,
)
from trioserve.errors import Shed, TrioserveError, Unavailable
from trioserve_protocol import (
    Admin,
    Bind,
    ErrorCode,
    Flag,
    FrameType,
    Infer,
    InferMany,
    credit_frame,
    error_frame,
    frame,
    goaway_frame,
)

X = np.arange(4, dtype=np.float32)
FAST = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)
NO_RETRY = RetryPolicy(max_attempts=1)


@on_both
async def test_a_shed_request_is_sent_again_when_the_server_said() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        first: Infer = await peer.next(Infer)
        shed_at = anyio.current_time()
        await peer.send(error_frame(first.rid, ErrorCode.SHED, retry_after_us=30_000))
        second: Infer = await peer.next(Infer)
        assert anyio.current_time() - shed_at >= 0.03
        assert (first.flags & Flag.RETRY, second.flags & Flag.RETRY) == (0, Flag.RETRY)
        assert second.flags & 3 == RequestClass.SHEDDABLE
        await peer.result(second.rid, X[None])

    async with scripted(script) as server, connect(server.url) as client:
        inference = await client.infer_with_timing("scale", X, priority=RequestClass.SHEDDABLE)
        assert inference.attempts == 2


@on_both
async def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infer: Infer = await peer.next(Infer)
        await peer.send(error_frame(infer.rid, ErrorCode.SHED, retry_after_us=60_000_000))

    async with scripted(script) as server, connect(server.url) as client:
        with pytest.raises(Shed), anyio.fail_after(5):
            await client.infer("scale", X)


@on_both
async def test_a_storm_of_failures_is_passed_on_when_the_budget_is_spent() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        while (event := await peer.next()) is not None:
            if isinstance(event, Infer):
                sent.append(event)
                await peer.send(error_frame(event.rid, ErrorCode.SHED))

    sent: list[Infer] = []
    async with scripted(script) as server, connect(server.url, retry=FAST) as client:
        for _ in range(30):
            with pytest.raises(Shed):
                await client.infer("scale", X)
    assert len(sent) == 34  # Three retries for the first call, one for the second, none for the others.


@on_both
async def test_a_broken_connection_is_replaced_and_the_request_sent_again() -> None:
    async def script(server: FakeServer) -> None:
        first = await server.accept()
        await first.bound(SCALE)
        await first.next(Infer)
        first.reset()
        second = await server.accept()
        bind: Bind = await second.next(Bind)
        infer: Infer = await second.next(Infer)
        assert infer.flags & Flag.RETRY
        assert infer.meta
        await second.send(bound_as(bind, SCALE))
        await second.result(infer.rid, X[None])

    async with scripted(script) as server, connect(server.url, retry=FAST) as client:
        assert (await client.infer("scale", X)).tolist() == X.tolist()


@on_both
async def test_without_retries_a_lost_connection_is_the_callers_to_see() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        for _ in range(2):
            await peer.next(Infer)
        peer.close()
        await (await server.accept()).serve()

    failures: list[TrioserveError] = []

    async def call(client: Client) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await client.infer("scale", X)
        failures.append(caught.value)

    async with scripted(script) as server, connect(server.url, retry=NO_RETRY) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            tasks.start_soon(call, client)
        assert failures[0] is not failures[1]
        assert failures[0].retryable
        assert (await client.infer("scale", X)).shape == (4,)


@on_both
async def test_goaway_moves_requests_to_another_connection_without_a_retry() -> None:
    async def script(server: FakeServer) -> None:
        old = await server.accept()
        await old.bound(SCALE)
        first, second = await old.next(Infer), await old.next(Infer)
        await old.send(goaway_frame(1))
        new = await server.accept()
        bind: Bind = await new.next(Bind)
        moved: Infer = await new.next(Infer)
        assert not moved.flags & Flag.RETRY
        await new.send(bound_as(bind, SCALE))
        await new.result(moved.rid, X[None] + 1)
        await old.send(error_frame(second.rid, ErrorCode.DRAINING))
        await old.result(first.rid, X[None] + 2)
        old.close()
        await new.serve()

    results: list[float] = []

    async def call(client: Client) -> None:
        results.append(float((await client.infer("scale", X))[0]))

    async with scripted(script) as server, connect(server.url, retry=NO_RETRY) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            tasks.start_soon(call, client)
        assert sorted(results) == [1, 2]


@on_both
async def test_goaway_in_the_middle_of_infer_many_loses_no_row() -> None:
    async def script(server: FakeServer) -> None:
        old = await server.accept()
        await old.bound(SCALE)
        first: InferMany = await old.next(InferMany)
        await old.next(InferMany)
        await old.send(goaway_frame(first.rows))
        payload = np.frombuffer(first.payload, np.float32).reshape(-1, 4)
        await old.results(first.rid, payload * 2)
        await (await server.accept()).serve()

    x = np.arange(4000, dtype=np.float32).reshape(-1, 4)
    async with scripted(script) as server, connect(server.url) as client:
        many = await client.infer_many("scale", {"x": x})
        assert many.ok.all()
        assert many.failures == ()
        assert np.array_equal(many.output, x * 2)


@on_both
async def test_rows_lost_in_flight_are_in_the_result_and_the_rest_goes_on() -> None:
    async def script(server: FakeServer) -> None:
        old = await server.accept()
        await old.bound(SCALE)
        await old.send(credit_frame(8, 1 << 20))
        await old.next(InferMany)
        lost.append((await old.next(InferMany)).rows)
        old.reset()
        await (await server.accept()).serve()

    lost: list[int] = []
    async with scripted(script) as server, connect(server.url) as client:
        many = await client.infer_many("scale", np.ones((500, 4), np.float32))
        assert set(many.codes.tolist()) == {0, ErrorCode.UNAVAILABLE}
        assert 0 < np.count_nonzero(many.codes) <= 256
        with pytest.raises(ConnectionLost):
            many.raise_for_errors()


@on_both
async def test_rows_that_nobody_will_take_say_why() -> None:
    async def script(server: FakeServer) -> None:
        old = await server.accept()
        await old.bound(SCALE)
        first: InferMany = await old.next(InferMany)
        server.sock.close()
        await old.send(goaway_frame(first.rows))
        await old.results(first.rid, np.ones((first.rows, 4), np.float32))

    async with scripted(script) as server, connect(server.url, retry=FAST) as client:
        many = await client.infer_many("scale", np.ones((500, 4), np.float32))
        assert 0 < many.ok.sum() < 500
        assert {type(failure.error) for failure in many.failures} == {ConnectFailed}


@on_both
async def test_no_server_is_a_typed_retryable_error() -> None:
    server = listen()
    server.close()
    with pytest.raises(ConnectFailed, match="Connection refused") as caught:
        async with connect(server.url):
            pass
    assert isinstance(caught.value, Unavailable)
    assert caught.value.retryable
    with pytest.raises(ConnectFailed, match="cannot connect to unix:///nonexistent/socket"):
        async with connect("unix:///nonexistent/socket"):
            pass


@on_both
async def test_callers_share_one_attempt_to_reconnect() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        for _ in range(10):
            await peer.next(Infer)
        server.sock.close()
        peer.close()

    failures: list[BaseException] = []

    async def call(client: Client) -> None:
        with pytest.raises(Unavailable) as caught:
            await client.infer("scale", X)
        failures.append(caught.value)

    async with scripted(script) as server, connect(server.url, retry=FAST) as client:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(call, client)
    assert len(failures) == 10


@on_both
async def test_a_name_is_looked_up() -> None:
    async with serving() as server:
        port = server.url.rpartition(":")[2]
        async with connect(f"tcp://localhost:{port}") as client:
            assert (await client.infer("scale", X)).shape == (4,)


@on_both
async def test_connecting_gives_up_in_time() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        policy = RetryPolicy(connect_timeout_s=0.05)
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
            async with connect(f"tcp://127.0.0.1:{address[1]}", retry=policy):
                pass
        for filler in fillers:
            filler.close()


@on_both
async def test_a_server_that_breaks_the_protocol_is_left_with_a_typed_error() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.next(Bind)
        await peer.send(b"220 smtp.example.com ESMTP ready, hello\r\n")
        await peer.next()

    async with scripted(script) as server, connect(server.url, retry=NO_RETRY) as client:
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await client.infer("scale", X)


@on_both
async def test_an_answer_that_is_no_json_is_the_servers_fault() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        question: Admin = await peer.next(Admin)
        await peer.send(frame(FrameType.ADMIN, rid=question.rid, payload=b"{nonsense"))

    async with scripted(script) as server, connect(server.url) as client:
        with pytest.raises(TrioserveError, match="not JSON"):
            await client.health()


@on_both
async def test_a_bug_in_the_client_reaches_the_callers_and_not_their_tasks() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(LENGTHS)
        await peer.next(Infer)
        await peer.next()

    async with scripted(script) as server, connect(server.url) as client:
        assert client._link is not None
        client._link.feed = lambda now_s: 1 / 0  # type: ignore[method-assign, assignment]
        with pytest.raises(TrioserveError, match="the client failed: ZeroDivisionError"):
            await client.infer("lengths", "x")


def test_the_client_never_loads_the_server() -> None:
    program = """
import sys
import trioserve.client, trioserve.client.sync
allowed = ("trioserve", "trioserve.client", "trioserve.errors", "trioserve.tls")
loaded = [name for name in sys.modules if name.startswith("trioserve.") or name == "trioserve"]
print([name for name in loaded if name not in allowed and not name.startswith(("trioserve.client.", "trioserve.tls."))])
print([name for name in ("trio", "asyncio", "structlog") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.splitlines()[0] == "[]"
