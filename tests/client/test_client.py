"""The asynchronous client on real sockets, under Trio and under asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from tests.client.fake_server import (
    SCALE,
    WIDE,
    FakeServer,
    bound_as,
    on_both,
    scripted,
    serving,
)
from trioserve.client import (
    Client,
    ClientClosed,
    RetryPolicy,
    connect,
)
from trioserve.errors import InvalidShape, ModelNotFound, TrioserveError
from trioserve_protocol import (
    Bind,
    Cancel,
    Flag,
    FrameType,
    Infer,
    InferMany,
    PeerLimits,
    Ping,
    Tag,
    Timing,
    frame,
    tlv,
)

X = np.arange(4, dtype=np.float32)
FAST = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)
NO_RETRY = RetryPolicy(max_attempts=1)


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
        with pytest.raises(TimeoutError), anyio.fail_after(0.1):
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
        scope.cancel()
        assert await peer.next(Cancel) == Cancel(first.rid, first.rows + second.rows)

    scope = anyio.CancelScope()
    async with scripted(script) as server, connect(server.url) as client:
        with scope:
            await client.infer_many("scale", np.zeros((1000, 4), np.float32))
        assert scope.cancelled_caught


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


@on_both
async def test_callers_wait_for_credit() -> None:
    async def script(server: FakeServer) -> None:
        server.hello = False
        peer = await server.accept()
        hello = await peer.next()
        limits = PeerLimits(window_requests=2, window_kib=1024)
        await peer.send(frame(FrameType.WELCOME, rid=hello.rid, meta=tlv(Tag.LIMITS, limits.encode())))
        bind: Bind = await peer.next(Bind)
        await peer.send(bound_as(bind, SCALE))
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
