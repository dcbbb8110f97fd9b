"""The asynchronous client on real sockets, under Trio and under asyncio."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from tests.client.fake_server import (
    LENGTHS,
    SCALE,
    WIDE,
    FakeServer,
    listen,
    on_both,
    scripted,
    serving,
)
from trioserve.client import (
    Client,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    RequestClass,
    RetryPolicy,
    connect,
)
from trioserve.errors import InvalidShape, ModelNotFound, Shed, TrioserveError, Unavailable
from trioserve_protocol import (
    Admin,
    Bind,
    Cancel,
    ErrorCode,
    Flag,
    FrameType,
    Infer,
    InferMany,
    PeerLimits,
    Ping,
    Tag,
    Timing,
    credit_frame,
    error_frame,
    frame,
    goaway_frame,
    tlv,
)

X = np.arange(4, dtype=np.float32)
FAST = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)
NO_RETRY = RetryPolicy(max_attempts=1)


# -- the happy paths ---------------------------------------------------------------------------------------------------


@on_both
async def test_a_result_has_the_shape_of_what_was_asked() -> None:
    async with serving() as server, connect(server.url) as client:
        assert (await client.infer("scale", X)).tolist() == [0, 2, 4, 6]
        assert (await client.infer("scale", X[None])).shape == (1, 4)
        assert (await client.infer("scale", {"x": [X, X]})).shape == (2, 4)
        assert await client.infer("upper", "text") == b"TEXT"
        assert (await client.infer("upper", ["a", b"b"])).tolist() == [b"A", b"B"]
        assert (await client.infer("lengths", "four")) == 4
        both = await client.infer("pair", {"a": [1, 2, 3], "b": 4})
        assert (both["sum"], both["flag"].tolist()) == (10, [True, True, True])


@on_both
async def test_results_own_their_memory() -> None:
    async with serving() as server, connect(server.url) as client:
        first = await client.infer("scale", X)
        await client.infer("scale", X * 100)
        assert first.tolist() == [0, 2, 4, 6]
        first[0] = 5


@on_both
async def test_many_calls_share_one_connection() -> None:
    async with serving() as server, connect(server.url) as client:
        results: dict[int, Any] = {}

        async def call(number: int) -> None:
            results[number] = await client.infer("scale", X + number)

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(call, number)
        assert all(results[number][0] == 2 * number for number in range(100))
        assert len(server.peers) == 1


@on_both
async def test_large_tensors_go_both_ways() -> None:
    async with serving() as server, connect(server.url) as client:
        x = np.random.default_rng(1).random((20, 50_000), np.float32)
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.infer("wide", x))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(call)
        assert all(np.array_equal(result, x + 1) for result in results)


@on_both
async def test_columns() -> None:
    async with serving() as server, connect(server.url) as client:
        x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        many = await client.infer_many("scale", x)
        assert many.ok.all()
        assert np.array_equal(many.output, x * 2)
        texts = ["x" * (number % 50) for number in range(500)]
        assert (await client.infer_many("lengths", texts)).output.tolist() == [
            number % 50 for number in range(500)
        ]
        assert (await client.infer_many("lengths", [])).output.shape == (0,)


@on_both
async def test_the_rest_of_the_api() -> None:
    async with serving() as server, connect(server.url) as client:
        assert await client.signature("wide") == WIDE
        assert 0 < await client.ping() < 5
        assert await client.models() == {"asked": {"op": "models"}}
        assert await client.statistics() == {"asked": {"op": "statistics"}}
        assert await client.health() == {"asked": {"op": "health"}}


@on_both
async def test_errors_are_the_servers() -> None:
    async with serving() as server, connect(server.url) as client:
        with pytest.raises(ModelNotFound, match="no model 'nope'"):
            await client.infer("nope", X)
        with pytest.raises(InvalidShape):
            await client.infer("scale", np.zeros(5, np.float32))
        with pytest.raises(ModelNotFound):
            await client.infer_many("nope", X[None])
        with pytest.raises(ModelNotFound):
            await client.signature("nope")
        assert (await client.infer("scale", X)).shape == (4,)


@on_both
async def test_timing_is_asked_for() -> None:
    timing = Timing(received_ns=1, sent_ns=5)

    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infer: Infer = await peer.next(Infer)
        assert infer.flags & Flag.SAMPLED
        await peer.result(infer.rid, X[None], meta=tlv(Tag.TIMING, timing.encode()), timeout_us=70, aux=30)

    async with scripted(script) as server, connect(server.url) as client:
        inference = await client.infer_with_timing("scale", X)
        assert inference.timing == timing
        assert (inference.server_us, inference.queue_us) == (70, 30)
        assert inference.output.tolist() == X.tolist()


# -- deadlines and cancelling ------------------------------------------------------------------------------------------


@on_both
async def test_what_is_left_of_the_callers_scope_goes_on_the_wire() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        for _ in range(3):
            infer: Infer = await peer.next(Infer)
            seen.append(infer.timeout_us)
            await peer.result(infer.rid, X[None])

    seen: list[int] = []
    async with scripted(script) as server, connect(server.url) as client:
        with anyio.fail_after(5):
            await client.infer("scale", X)
        with anyio.fail_after(2), anyio.move_on_after(100):
            await client.infer("scale", X)
        await client.infer("scale", X)
    assert 4_000_000 < seen[0] <= 5_000_000
    assert 1_000_000 < seen[1] <= 2_000_000
    assert seen[2] == 0


@on_both
async def test_a_deadline_ends_the_call_and_cancels_it_on_the_server() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        infer: Infer = await peer.next(Infer)
        assert (await peer.next(Cancel)) == Cancel(infer.rid, 1)
        second: Infer = await peer.next(Infer)
        await peer.result(infer.rid, X[None])
        await peer.result(second.rid, X[None] + 7)

    async with scripted(script) as server, connect(server.url) as client:
        with pytest.raises(TimeoutError), anyio.fail_after(0.02):
            await client.infer("scale", X)
        assert (await client.infer("scale", X)).tolist() == (X + 7).tolist()


@on_both
async def test_a_call_in_a_scope_that_is_cancelled_already_is_not_sent() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        await peer.result((await peer.next(Infer)).rid, X[None])
        assert isinstance(await peer.next(), Ping)
        await peer.send(frame(FrameType.PONG, rid=peer.seen[-1].rid))

    async with scripted(script) as server, connect(server.url) as client:
        await client.infer("scale", X)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.infer("scale", X)
        with anyio.move_on_after(-1):
            await client.infer("scale", X)
        await client.ping()


@on_both
async def test_a_cancelled_infer_many_cancels_all_that_is_in_flight() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        first, second = await peer.next(InferMany), await peer.next(InferMany)
        assert await peer.next(Cancel) == Cancel(first.rid, first.rows + second.rows)

    async with scripted(script) as server, connect(server.url) as client:
        with anyio.move_on_after(0.02):
            await client.infer_many("scale", np.zeros((1000, 4), np.float32))


@on_both
async def test_leaving_cancels_everything_and_half_closes() -> None:
    async def script(server: FakeServer) -> None:
        peer = await server.accept()
        await peer.bound(SCALE)
        await peer.next(Infer)
        got_it.set()
        assert await peer.next(Cancel) == Cancel(0, 1)
        assert await peer.next() is None
        finished.set()

    got_it, finished = anyio.Event(), anyio.Event()
    failures: list[BaseException] = []

    async def call(client: Client) -> None:
        try:
            await client.infer("scale", X)
        except TrioserveError as error:
            failures.append(error)

    async with scripted(script) as server, anyio.create_task_group() as tasks:
        async with connect(server.url) as client:
            tasks.start_soon(call, client)  # noqa: ASYNC111  what a call gets when the client goes away under it
            await got_it.wait()
        await finished.wait()
    assert isinstance(failures[0], ClientClosed)
    with pytest.raises(ClientClosed):
        await client.infer("scale", X)


@on_both
async def test_the_bodys_own_exception_leaves_ungrouped() -> None:
    async with serving() as server:
        with pytest.raises(ZeroDivisionError):
            await _divide_by_zero(server.url)
        with anyio.move_on_after(0.01) as scope:
            async with connect(server.url):
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with anyio.CancelScope() as scope:
            async with connect(server.url):
                scope.cancel()
        await anyio.lowlevel.checkpoint()


async def _divide_by_zero(url: str) -> float:
    async with connect(url) as client:
        await client.infer("scale", X)
        return 1 / 0


@on_both
async def test_a_client_is_entered_once() -> None:
    async with serving() as server:
        client = connect(server.url)
        async with client:
            pass
        with pytest.raises(RuntimeError, match="once"):
            async with client:
                pass
        with pytest.raises(ClientClosed):
            await connect(server.url).infer("scale", X)


# -- credit ------------------------------------------------------------------------------------------------------------


@on_both
async def test_callers_wait_for_credit() -> None:
    async def script(server: FakeServer) -> None:
        server.hello = False
        peer = await server.accept()
        hello = await peer.next()
        limits = PeerLimits(window_requests=2, window_kib=1024)
        await peer.send(frame(FrameType.WELCOME, rid=hello.rid, meta=tlv(Tag.LIMITS, limits.encode())))
        bind: Bind = await peer.next(Bind)
        await peer.send(_bound(bind))
        waiting: list[Infer] = []
        for _ in range(20):
            waiting.append(await peer.next(Infer))
            if len(waiting) == 2:
                assert not peer.events
                await peer.result(waiting.pop(0).rid, X[None])
        await peer.result(waiting.pop().rid, X[None])

    async with scripted(script) as server, connect(server.url) as client:
        await client.signature("scale")
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(client.infer, "scale", X)


def _bound(event: Bind) -> bytes:
    from trioserve_protocol import bound_frame

    return bound_frame(event.rid, event.handle, SCALE)


# -- retries and reconnects --------------------------------------------------------------------------------------------


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
        await second.send(_bound(bind))
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
        await new.send(_bound(bind))
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
allowed = ("trioserve", "trioserve.client", "trioserve.errors")
loaded = [name for name in sys.modules if name.startswith("trioserve.") or name == "trioserve"]
print([name for name in loaded if name not in allowed and not name.startswith("trioserve.client.")])
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
