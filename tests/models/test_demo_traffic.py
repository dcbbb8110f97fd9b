"""Load keeps so many requests in flight, and times each."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing

from trioserve_tools.demo._traffic import measure


class SlowClient:
    """Takes a tenth of a second for each request, on a virtual clock."""

    def __init__(self) -> None:
        self.in_flight = self.most = 0
        self.asked: list[str] = []

    async def infer(self, model: str, texts: list[str]) -> None:
        assert model == "m"
        self.asked += texts
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await trio.sleep(0.1)
        self.in_flight -= 1


@pytest.mark.parametrize("in_flight, took_s", [(1, 1.0), (5, 0.2)])
async def test_in_flight(in_flight: int, took_s: float, autojump_clock: trio.testing.MockClock) -> None:
    client = SlowClient()
    texts = [str(number) for number in range(10)]
    load = await measure(client, "m", texts, in_flight=in_flight, name="x")  # type: ignore[arg-type]
    assert client.asked == texts
    assert client.most == in_flight
    assert trio.current_time() == pytest.approx(took_s)
    assert load.name == "x"
    assert np.all(load.latencies_ns > 0)
