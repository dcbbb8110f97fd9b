"""Both clients against a real server: three models in Python, in a process of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import numpy as np
import pytest
import trio

from tests.client.fake_server import on_both
from trioserve.client import RequestClass, connect, sync
from trioserve.errors import DeadlineExceeded, InvalidShape, ModelNotFound, ModelRaised, TrioserveError
from trioserve_tools.server_process import running_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = """\
import time
import trioserve

class Model(trioserve.Model):
    name = "{name}"
    inputs = {{"x": trioserve.Tensor("f4", [-1, {width}])}}
    outputs = {{"y": trioserve.Tensor("f4", [-1, {width}])}}

    def infer(self, x):
        {body}
"""
MODELS = {
    "scale": (4, "if (x < 0).any(): raise ValueError('negative')\n        return x * 2"),
    "slow": (4, "time.sleep(0.3); return x"),
    "wide": (50_000, "return x + 1"),
}
X = np.arange(4, dtype=np.float32)

URL: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs the server in a process, and what looks after it in a thread."""
    folder = tmp_path_factory.mktemp("models")
    for name, (width, body) in MODELS.items():
        (folder / f"{name}.py").write_text(MODEL.format(name=name, width=width, body=body))
    ready, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trio.run(_serve, folder, ready, stop)
        except BaseException as error:  # noqa: ASYNC103, BLE001  shown to the tests
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    try:
        if failures:
            raise failures[0]
        yield
    finally:
        stop.set()
        thread.join(30)
    if failures:
        raise failures[0]


async def _serve(folder: Path, ready: threading.Event, stop: threading.Event) -> None:
    async with running_server(folder) as (address, _):
        URL[:] = [address]
        ready.set()
        await trio.to_thread.run_sync(stop.wait)


@on_both
async def test_the_asynchronous_client() -> None:
    async with connect(URL[0]) as client:
        assert (await client.infer("scale", X)).tolist() == [0, 2, 4, 6]
        assert (await client.infer("scale", [[1, 2, 3, 4]] * 3)).shape == (3, 4)
        x = np.random.default_rng(1).random((5000, 4), np.float32)
        many = await client.infer_many("scale", x, priority=RequestClass.CRITICAL_PLUS)
        many.raise_for_errors()
        assert np.array_equal(many.output, x * 2)
        wide = np.random.default_rng(2).random((8, 50_000), np.float32)
        assert np.array_equal(await client.infer("wide", wide), wide + 1)
        many = await client.infer_many("wide", wide)
        assert np.array_equal(many.output, wide + 1)
        assert (await client.signature("scale")).inputs[0].dims == (-1, 4)
        assert await client.ping() > 0
        assert {model["name"] for model in await client.models()} == set(MODELS)
        assert await client.health() == {"live": True, "ready": True, "draining": False}
        assert await client.statistics()


@on_both
async def test_timing_is_in_order() -> None:
    async with connect(URL[0]) as client:
        inference = await client.infer_with_timing("scale", X)
        timing = inference.timing
        assert timing is not None
        assert (
            timing.received_ns <= timing.batched_ns <= timing.run_ns <= timing.finished_ns <= timing.sent_ns
        )
        assert 0 < inference.server_us <= inference.round_trip_us


@on_both
async def test_errors_are_the_servers_classes() -> None:
    async with connect(URL[0]) as client:
        with pytest.raises(ModelNotFound):
            await client.infer("nope", X)
        with pytest.raises(InvalidShape):
            await client.infer("scale", np.zeros(5, np.float32))
        with pytest.raises(ModelRaised, match="raised ValueError"):
            await client.infer("scale", -X - 1)
        bad = np.ones((50, 4), np.float32)
        bad[7] = -1
        many = await client.infer_many("scale", bad)
        assert np.flatnonzero(~many.ok).tolist() == [7]
        assert isinstance(many.failures[0].error, ModelRaised)


@on_both
async def test_deadlines_and_cancelling() -> None:
    async with connect(URL[0]) as client:
        await client.signature("slow")
        with pytest.raises((TimeoutError, DeadlineExceeded)), anyio.fail_after(0.05):
            await client.infer("slow", X)
        with anyio.move_on_after(0.02):
            await client.infer_many("slow", np.ones((64, 4), np.float32))
        assert (await client.infer("scale", X)).shape == (4,)


def test_the_blocking_client_in_threads() -> None:
    with sync.connect(URL[0], timeout_s=10) as client:

        def call(number: int) -> bool:
            x = X + number
            wide = np.full((2, 50_000), number, np.float32)
            return all(
                np.array_equal(client.infer("scale", x), x * 2)
                and client.infer("wide", wide)[1, -1] == number + 1
                for _ in range(10)
            )

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(call, range(4)))
        with pytest.raises(DeadlineExceeded):
            client.infer("slow", X, timeout_s=0.05)
        with pytest.raises(TrioserveError):
            client.infer("scale", "text")
