from __future__ import annotations

import numpy as np
import pytest
import trio

from trioserve_protocol import FrameType
from trioserve_tools.drill._drill import SERVED
from trioserve_tools.drill._ledger import input_rows, output_rows
from trioserve_tools.drill._observe import fds_of, leaks, neighbour, undisturbed_p99_us
from trioserve_tools.drill._wire import infer, wire
from trioserve_tools.server_process import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


async def test_frames_out_and_in(server: ServerProcess) -> None:
    rids = np.array([3], np.uint64)
    async with wire(server.port, "double") as connection:
        await connection.send(infer(3, input_rows(rids).tobytes()) + infer(4, bytes(8)))
        replies = sorted([await connection.expect(), await connection.expect()], key=lambda one: one.rid)
        assert [(reply.kind, reply.rid, reply.code) for reply in replies] == [
            (FrameType.RESULT, 3, "OK"),
            (FrameType.ERROR, 4, "INVALID_SIZE"),
        ]
        assert replies[0].payload == output_rows(rids).tobytes()
        assert (await connection.admin("health"))["ready"]
        await connection.finish_sending()
        assert await connection.receive() is None
        with pytest.raises(ConnectionError):
            await connection.expect()
    with pytest.raises(ConnectionError, match="nobody is not bound: MODEL_NOT_FOUND"):
        async with wire(server.port, "nobody"):
            raise AssertionError


async def test_what_a_server_holds_is_seen(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    fds = await fds_of(server)
    assert await leaks(server, fds) == 0
    monkeypatch.setattr("trioserve_tools.drill._observe.SETTLE_S", 0.1)
    async with wire(server.port, "slow") as connection:
        await connection.send(infer(1, np.ones(1, np.float32).tobytes()))
        assert await leaks(server, fds) > 0
        connection.reset()


async def test_a_neighbour_feels_the_server() -> None:
    with trio.fail_after(60):
        async with server_process(SERVED) as server:
            assert 0 < await undisturbed_p99_us(server.port, 0.1) < 1e6
            async with neighbour(server.port) as living:
                await trio.sleep(0.2)
                server.process.kill()
                await server.process.wait()
    assert living.felt.failures == 1
