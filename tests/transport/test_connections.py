"""How connections begin and end, in virtual time over a network in memory."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.e2e.harness import infer, row
from tests.transport.virtual import BIG, MS, VirtualServer, values, virtual_server
from trioserve.config import ServerLimits
from trioserve_protocol import ErrorCode, GoAway, Pong, ping_frame


async def test_drain_hangs_up_behind_the_last_reply(autojump_clock: MockClock) -> None:
    async with virtual_server(service_ns=lambda rows: 100 * MS) as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            client.send(infer(1, row(1)))
        await trio.sleep(0.01)
        server.engine.drain()
        server.group.goaway("bye")
        clients[0].send(infer(2, row(2)))
        await server.group.wait_quiet()
        server.group.hang_up()
        for client in clients:
            outcomes = client.outcomes()
            assert values(outcomes.pop(1))[0] == 2
            assert [event for event in client.events if isinstance(event, GoAway)] == [GoAway(1, "bye")]
            assert client.end.ended
        assert clients[0].outcomes()[2].code == ErrorCode.DRAINING
        clients[0].end.finish()
        await trio.sleep(0.01)
        assert server.group.connections == 2
        started = trio.current_time()
        await server.group.wait_empty()
        assert 0.9 < trio.current_time() - started < 1.2, "clients that do not close are closed"


async def test_waiting_for_quiet_while_a_client_does_not_read(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect(room_nbytes=0)
        client.send(infer(1, row(1)))
        await trio.sleep(0.1)
        with trio.move_on_after(1) as waited:
            await server.group.wait_quiet()
        assert waited.cancelled_caught
        client.end.room_nbytes = 1 << 20
        server.network.changed()
        with trio.fail_after(1):
            await server.group.wait_quiet()
        assert len(client.outcomes()) == 1


async def test_cancelled_group_closes_everything_and_ignores_what_comes_later(
    autojump_clock: MockClock,
) -> None:
    async with virtual_server(service_ns=lambda rows: 100 * MS) as server:
        client = server.connect()
        client.send(infer(1, row(1)))
        await trio.sleep(0.01)
    assert client.end.ended
    late, _ = server.network.connect()
    server.group.add(late)
    assert late.fileno() == -1
    server.group.settle()
    server.group.unwatch_stage(server.worker.fileno())
    server.group.close()


@pytest.mark.parametrize("how", ["reset", "finish", "nothing"])
@pytest.mark.parametrize("offset", [0, 1, 33, 48, 60, 96, 130, 144, 70_000, 80_100])
async def test_leaving_at_an_offset_under_every_manner(
    how: str, offset: int, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = server.connect()
        await wait_all_tasks_blocked()
        data = infer(1, row(1)) + infer(2, row(2)) + infer(3, row(3)) + infer(4, bytes(4 * BIG), handle=2)
        client.send(data[:offset])
        if how != "nothing":
            getattr(client.end, how)()
        await trio.sleep(30)
        complete = [rid for rid in (1, 2, 3) if offset >= 48 * rid]
        if how != "reset":
            assert [rid for rid in client.outcomes() if rid < 4] == complete
        if how == "nothing" and offset not in (0, 48, 96, 144):
            assert server.group.statistics()["closed"] == {"too slow": 1}
        assert_gone_unless_idle(server, idle=how == "nothing" and offset in (0, 48, 96, 144))


def assert_gone_unless_idle(server: VirtualServer, *, idle: bool) -> None:
    assert server.group.connections == int(idle)
    server.assert_at_rest()


async def test_on_fin_cancel(autojump_clock: MockClock) -> None:
    async with virtual_server(service_ns=lambda rows: 100 * MS, on_fin="cancel") as server:
        client = server.connect()
        client.send(infer(1, row(1)))
        await trio.sleep(0.01)
        client.end.finish()
        await trio.sleep(0.01)
        assert client.outcomes()[1].code == ErrorCode.CANCELLED_BY_CLIENT
        assert client.end.ended


async def test_too_many_connections_are_told_and_those_beyond_that_closed(autojump_clock: MockClock) -> None:
    async with virtual_server(ServerLimits(max_connections=2)) as server:
        served = [server.connect() for _ in range(2)]
        excess = [server.connect(bound=False) for _ in range(70)]
        await wait_all_tasks_blocked()
        codes = [[event.code for event in client.read()] for client in excess]
        assert codes == [[ErrorCode.TOO_MANY_CONNECTIONS]] * 64 + [[]] * 6
        assert all(client.end.ended for client in excess)
        statistics = server.group.statistics()
        assert (statistics["accepted"], statistics["turned_away"]) == (2, 70)
        await trio.sleep(2)
        assert server.group.connections == 2
        served[0].end.finish()
        await wait_all_tasks_blocked()
        late = server.connect(bound=False)
        late.send(ping_frame(1))
        await wait_all_tasks_blocked()
        assert isinstance(late.read()[0], Pong)


async def test_a_connection_that_the_poller_has_no_room_for_is_closed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:

        def full(fd: int, mask: int) -> None:
            raise OSError(28, "no space left")

        monkeypatch.setattr(server.network, "register", full)
        before = server.network.open_fds
        with pytest.raises(OSError, match="no space"):
            server.connect()
        assert server.network.open_fds == before
        assert server.group.connections == 0
        assert not server.engine.unanswered
