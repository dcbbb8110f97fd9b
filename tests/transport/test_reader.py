"""What becomes of received bytes, in virtual time over a network in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.e2e.harness import infer, row
from tests.transport.virtual import BIG, MS, VirtualServer, values, virtual_server
from trioserve.config import ServerLimits
from trioserve_protocol import (
    Error,
    ErrorCode,
    FrameType,
    PeerLimits,
    Pong,
    Result,
    Tag,
    Welcome,
    frame,
    frame_bytes,
    ping_frame,
    tlv,
)

BIG_BODY = row(1, 2, 3, 4).tobytes() * (BIG // 4)


def codes(events: Sequence[object]) -> list[tuple[int, int]]:
    return [(event.rid, event.code) for event in events if isinstance(event, Error)]


# ---------------------------------------------------------------- bodies nobody waits for


async def test_a_body_whose_deadline_has_passed_is_skipped_to_its_end(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect()
        data = infer(1, BIG_BODY, handle=2, timeout_us=10_000)
        client.send(data[:30_000])
        await trio.sleep(0.02)
        assert codes(client.read()) == [(1, ErrorCode.DEADLINE_IN_QUEUE)]
        server.assert_at_rest()
        client.send(data[30_000:50_000])
        await trio.sleep(0.02)
        client.send(data[50_000:], infer(2, row(2)), infer(3, BIG_BODY, handle=2))
        await trio.sleep(0.02)
        outcomes = client.outcomes()
        assert values(outcomes[2])[0] == 4
        assert values(outcomes[3])[:4] == [2, 4, 6, 8]
        server.assert_at_rest()


async def test_the_end_of_the_time_for_draining_in_the_middle_of_a_body(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect()
        client.send(infer(1, BIG_BODY, handle=2)[:30_000])
        await trio.sleep(0.01)
        server.engine.drain()
        server.engine.abort()
        server.group.hang_up()
        assert codes(client.read()) == [(1, ErrorCode.CANCELLED_BY_DRAIN)]
        server.assert_at_rest()
        client.send(BIG_BODY)
        await trio.sleep(0.01)
        assert not client.end.to_server, "what still comes is read, so that the client can read why"


async def test_a_body_that_ends_within_the_prefix_of_its_header(autojump_clock: MockClock) -> None:
    """Larger than a read, then one more byte than that, then all of it in two reads."""
    async with virtual_server() as server:
        client = server.connect()
        data = infer(1, BIG_BODY, handle=2)
        for at in (33, 65_536, 65_537, len(data) - 1):
            client.send(data[:at])
            await wait_all_tasks_blocked()
            client.send(data[at:])
            await trio.sleep(0.01)
            assert [type(event) for event in client.read()] == [Result]
            client.events.clear()
        server.assert_at_rest()


# ---------------------------------------------------------------- bugs


def plant(server: VirtualServer, monkeypatch: pytest.MonkeyPatch, rid: int) -> None:
    """A bug that one id meets."""
    intake = server.group._reader._intake
    real = intake.admit

    def admit(session: object, request: object, now_ns: int) -> None:
        if request.rid == rid:  # type: ignore[attr-defined]
            raise ZeroDivisionError("a bug")
        real(session, request, now_ns)  # type: ignore[arg-type]

    monkeypatch.setattr(intake, "admit", admit)


async def test_a_bug_met_by_bytes_that_waited(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server(ServerLimits(connection_turn_frames=4)) as server:
        bad, good = server.connect(), server.connect()
        await wait_all_tasks_blocked()
        plant(server, monkeypatch, 9)
        bad.send(*(infer(rid, b"", handle=9) for rid in range(1, 12)))
        good.send(infer(1, row(1)))
        await trio.sleep(0.1)
        assert codes(bad.read())[-1] == (0, ErrorCode.INTERNAL)
        assert len(bad.read()) == 9
        assert values(good.outcomes()[1])[0] == 2
        assert server.group.statistics()["open"] == 2


async def test_a_bug_met_by_one_of_several_gathered_connections(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        clients = [server.connect() for _ in range(10)]
        for rid in range(1, 9):
            for client in clients:
                client.send(infer(rid, row(rid)))
            await trio.sleep(0.01)
        plant(server, monkeypatch, 3)  # an id used before: no plain request, so it is parsed alone
        for client in clients[1:]:
            client.send(infer(9, row(9)))
        clients[0].send(infer(3, row(9)))
        await trio.sleep(0.01)
        clients[0].read()
        assert codes(clients[0].events)[-1] == (0, ErrorCode.INTERNAL)
        for client in clients[1:]:
            assert values(client.outcomes()[9])[0] == 18


async def test_a_second_bug_in_a_connection_that_is_leaving_closes_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = server.connect()
        client.send(b"garbage!")
        await wait_all_tasks_blocked()
        [peer] = server.group._connections.peers.values()

        def broken(buffer: memoryview) -> int:
            raise ZeroDivisionError("a bug")

        peer.recv_into = broken
        client.send(b"more")
        await wait_all_tasks_blocked()
        assert server.group.statistics()["closed"] == {"server bug": 1}


# ---------------------------------------------------------------- turns


async def test_settling_between_two_turns_of_bytes_that_wait(autojump_clock: MockClock) -> None:
    """The timer is set, in case the task sleeps; it does not, and nothing is lost or done twice."""
    async with virtual_server(ServerLimits(connection_turn_frames=1)) as server:
        client = server.connect(bound=False)
        client.send(*(ping_frame(rid) for rid in range(1, 40)))
        while len(client.read()) < 39:
            await trio.lowlevel.checkpoint()
            server.group.settle()
        assert [event.rid for event in client.events if isinstance(event, Pong)] == list(range(1, 40))


async def test_the_window_that_a_client_asks_for(autojump_clock: MockClock) -> None:
    limits = PeerLimits(window_requests=3, window_kib=1)
    hello = frame_bytes(frame(FrameType.HELLO, rid=1, meta=tlv(Tag.LIMITS, limits.encode())))
    async with virtual_server(service_ns=lambda rows: 10 * MS) as server:
        client = server.connect(bound=False)
        client.send(hello)
        await wait_all_tasks_blocked()
        [welcome] = client.read()
        assert isinstance(welcome, Welcome)
        assert (welcome.limits.window_requests, welcome.limits.window_kib) == (3, 1)


async def test_a_leaving_client_that_floods_is_read_and_dropped(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client, other = server.connect(), server.connect()
        client.send(b"garbage!", bytes(5_000_000))
        other.send(infer(1, row(1)))
        await trio.sleep(0.1)
        assert not client.end.to_server
        assert len(client.read()) == 1
        assert len(other.outcomes()) == 1
        client.end.finish()
        await wait_all_tasks_blocked()
        assert server.group.statistics()["closed"] == {"protocol error": 1}


async def test_a_leaving_client_that_does_not_read_is_closed_in_the_end(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect(bound=False, room_nbytes=10)
        client.send(b"garbage!")
        client.end.finish()
        await trio.sleep(0.5)
        assert server.group.connections == 1, "it is owed an answer"
        await trio.sleep(1)
        assert server.group.connections == 0
