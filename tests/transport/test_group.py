"""Turns of a connection group, in virtual time over a network in memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.e2e.harness import infer, row
from tests.transport.virtual import BIG, MS, values, virtual_server
from trioserve.batching import ServiceModel
from trioserve.config import ServerLimits
from trioserve_protocol import (
    Error,
    ErrorCode,
    Pong,
    Result,
    cancel_frame,
    ping_frame,
)


async def test_a_request_and_its_reply(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect()
        client.send(infer(1, row(3)))
        await trio.sleep(0.01)
        assert values(client.outcomes()[1])[0] == 6
        server.assert_at_rest()


async def test_an_idle_group_polls_nothing(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = server.connect()
        client.send(infer(1, row(3)))
        await trio.sleep(5)
        before = server.network.polls
        await trio.sleep(80_000)
        assert server.network.polls == before
        assert len(client.outcomes()) == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
async def test_short_reads_and_writes_change_nothing(seed: int, autojump_clock: MockClock) -> None:
    """Whatever the kernel takes and gives at once."""
    rng = random.Random(seed)

    def some(nbytes: int) -> int:
        return rng.choice([1, 2, 31, 32, 33, 47, 48, 100, 4096, 30_000, nbytes])

    async with virtual_server() as server:
        clients = [server.connect(room_nbytes=rng.choice([1 << 62, 3_000, 100_000])) for _ in range(3)]
        for client in clients:
            client.sock.most_nbytes = some
            big = row(*range(4)).tobytes() * (BIG // 4)
            frames = [infer(rid, row(rid)) for rid in range(1, 30)]
            frames += [infer(40, big, handle=2), ping_frame(7), infer(41, row(41)), infer(42, big, handle=2)]
            client.send(*frames)
        while not all(len(client.events) == 33 for client in clients):
            await trio.sleep(0.0005)
            for client in clients:
                client.read(rng.choice([1000, 1 << 20]))
        for client in clients:
            outcomes = client.outcomes()
            assert sorted(outcomes) == [*range(1, 30), 40, 41, 42]
            for rid, event in outcomes.items():
                if rid in (40, 42):
                    assert isinstance(event, Result | Error)
                else:
                    assert values(event)[0] == 2 * rid
            assert [event for event in client.events if isinstance(event, Pong)] == [Pong(7, b"")]
        server.assert_at_rest()


# ---------------------------------------------------------------- fairness


async def test_flooding_clients_do_not_keep_others_out(autojump_clock: MockClock) -> None:
    """However fast two clients send: in every turn the others have their share of it."""
    limits = ServerLimits(turn_frames=64, connection_turn_frames=32, connection_turn_nbytes=2048)
    async with virtual_server(limits) as server:
        floods = [server.connect() for _ in range(3)]
        for flood in floods:
            flood.send(*(infer(rid, b"", handle=9) for rid in range(1, 20_001)))
        quiet = [server.connect(bound=False) for _ in range(8)]
        for client in quiet:
            client.send(ping_frame(1))
        left_of_floods = []
        while not all(client.read() for client in quiet):
            await trio.lowlevel.checkpoint()
            left_of_floods.append(len(floods[0].end.to_server))
        assert left_of_floods[-1] > 400_000, "the others waited for a flood to be over"


async def test_every_flooding_client_has_its_turn(autojump_clock: MockClock) -> None:
    """More of them than one turn serves: none waits for ever."""
    limits = ServerLimits(turn_frames=32, connection_turn_frames=32, connection_turn_nbytes=1024)
    async with virtual_server(limits) as server:
        floods = [server.connect(bound=False) for _ in range(20)]
        for flood in floods:
            flood.send(*(infer(rid, b"", handle=9) for rid in range(1, 2_001)))
        while not all(client.read() for client in floods):
            await trio.lowlevel.checkpoint()
            done = [2_000 - len(flood.end.to_server) // 32 for flood in floods]
            assert max(done) - min(done) < 400


async def test_other_tasks_run_while_a_flood_is_served(autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        flood = server.connect(bound=False)
        flood.send(*(infer(rid, b"", handle=9) for rid in range(1, 50_001)))
        ran = 0
        while len(flood.read()) < 50_000:
            await trio.lowlevel.checkpoint()
            ran += 1
        assert ran > 20


# ---------------------------------------------------------------- pauses


async def test_a_paused_connection_is_neither_read_nor_parsed(autojump_clock: MockClock) -> None:
    limits = ServerLimits(control_frames_per_s=100)
    async with virtual_server(limits) as server:
        client = server.connect(bound=False)
        client.send(*(ping_frame(rid) for rid in range(1, 1001)))
        await trio.sleep(0.05)
        first = len(client.read())
        assert 100 <= first <= 100 + 256
        assert server.network._masks[client.sock.fileno()] == 0
        await trio.sleep(10)
        assert [event.rid for event in client.read()] == list(range(1, 1001))


async def test_a_pause_does_not_count_as_a_stall(autojump_clock: MockClock) -> None:
    limits = ServerLimits(control_frames_per_s=10, header_stall_s=2.0)
    async with virtual_server(limits) as server:
        client = server.connect(bound=False)
        client.send(*(ping_frame(rid) for rid in range(1, 60)), ping_frame(60)[:9])
        await trio.sleep(5.5)
        client.send(ping_frame(60)[9:])
        await trio.sleep(5)
        assert [type(event) for event in client.read()] == [Pong] * 60


async def test_bytes_that_wait_are_parsed_before_the_end_of_the_stream(autojump_clock: MockClock) -> None:
    limits = ServerLimits(connection_turn_frames=8)
    async with virtual_server(limits) as server:
        client = server.connect()
        client.send(*(infer(rid, row(rid)) for rid in range(1, 101)))
        client.end.finish()
        await trio.sleep(1)
        assert sorted(client.outcomes()) == list(range(1, 101))
        assert client.end.ended
        assert server.group.connections == 0


async def test_settling_from_outside_wakes_a_group_with_bytes_that_wait(autojump_clock: MockClock) -> None:
    """What is ready in user space is reported by no poller."""
    async with virtual_server(ServerLimits(connection_turn_frames=1)) as server:
        client = server.connect(bound=False)
        client.send(*(ping_frame(rid) for rid in range(1, 4)))
        await trio.sleep(0.01)
        assert len(client.read()) == 3


# ---------------------------------------------------------------- descriptors


async def test_a_number_that_comes_back_within_one_turn_is_another_connection(
    autojump_clock: MockClock,
) -> None:
    """Resets and new connections in the same instant: events of the old ones must not reach the new ones."""
    async with virtual_server() as server:
        for _ in range(30):
            old = [server.connect() for _ in range(5)]
            for client in old:
                client.send(infer(1, row(1)), infer(2, row(2)))
            await trio.lowlevel.checkpoint()
            numbers = {client.sock.fileno() for client in old}
            for client in old:
                client.end.reset()
            await wait_all_tasks_blocked()
            assert not server.group.connections
            new = [server.connect() for _ in range(5)]
            assert {client.sock.fileno() for client in new} == numbers
            for client in new:
                client.send(infer(9, row(9)))
            await trio.sleep(0.01)
            for client in new:
                assert list(client.outcomes()) == [9]
                client.end.finish()
            await trio.sleep(0.01)
        server.assert_at_rest()
        assert server.network.open_fds == 2


async def test_a_lost_worker_leaves_the_poller_before_its_number_is_free(autojump_clock: MockClock) -> None:
    async with virtual_server(service_ns=lambda rows: 50 * MS) as server:
        server.small.service = ServiceModel({1: 50 * MS})
        client = server.connect()
        client.send(*(infer(rid, row(rid)) for rid in range(1, 21)))
        await trio.sleep(0.01)
        lost = server.worker
        number = lost.fileno()
        lost.die()
        await wait_all_tasks_blocked()
        assert lost.fileno() == -1
        other = server.connect()
        assert other.sock.fileno() == number
        other.send(ping_frame(1))
        await wait_all_tasks_blocked()
        assert len(other.read()) == 1
        server.executor.reaped(restarting=True)
        server.start_worker()
        await trio.sleep(1)
        outcomes = client.outcomes()
        assert sorted(outcomes) == list(range(1, 21))
        codes = [event.code for event in outcomes.values() if isinstance(event, Error)]
        assert set(codes) == {ErrorCode.WORKER_LOST}
        assert len(codes) == 16, "only what was with it is lost"
        server.assert_at_rest()


# ---------------------------------------------------------------- failures


async def test_a_bug_in_one_connection_closes_that_connection_only(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        good, bad = server.connect(), server.connect()
        await wait_all_tasks_blocked()
        real = server.group._reader._intake.admit

        def admit(session: object, request: object, now_ns: int) -> None:
            if request.rid == 666:  # type: ignore[attr-defined]
                raise ZeroDivisionError("a bug")
            real(session, request, now_ns)  # type: ignore[arg-type]

        monkeypatch.setattr(server.group._reader._intake, "admit", admit)
        bad.send(infer(1, row(1)), infer(666, row(1)), infer(2, row(1)))
        good.send(infer(1, row(1)))
        await trio.sleep(0.5)
        assert values(good.outcomes()[1])[0] == 2
        bad.read()
        assert [(event.rid, event.code) for event in bad.events if isinstance(event, Error)] == [
            (1, ErrorCode.CANCELLED_BY_CLIENT),
            (0, ErrorCode.INTERNAL),
        ]
        assert bad.end.ended
        await trio.sleep(2)
        assert server.group.statistics()["closed"] == {"server bug": 1}
        server.assert_at_rest()


async def test_a_socket_that_fails_in_any_way_is_closed_quietly(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        clients = [server.connect() for _ in range(3)]
        await wait_all_tasks_blocked()

        def broken(*_: object) -> int:
            raise OSError(113, "no route to host")

        for client in clients:
            monkeypatch.setattr(client.sock, "send", broken)
            [peer] = [peer for peer in server.group._connections.peers.values() if peer.sock is client.sock]
            peer._send = broken
            client.send(infer(1, row(1)))
        await trio.sleep(0.1)
        assert server.group.connections == 0
        assert server.group.statistics()["closed"] == {"disconnected": 3}
        server.assert_at_rest()


async def test_readiness_that_was_a_mistake_is_no_error(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = server.connect(bound=False)
        await wait_all_tasks_blocked()
        [peer] = server.group._connections.peers.values()
        answers: list[Callable[[memoryview], int]] = [peer.recv_into]

        def once(buffer: memoryview) -> int:
            peer.recv_into = answers[0]
            raise BlockingIOError

        peer.recv_into = once
        client.send(ping_frame(1))
        await trio.sleep(0.1)
        assert len(client.read()) == 1


# ---------------------------------------------------------------- time


async def test_deadlines_to_the_microsecond(autojump_clock: MockClock) -> None:
    async with virtual_server(service_ns=lambda rows: 2_000 * MS) as server:
        client = server.connect()
        client.send(infer(1, row(1), timeout_us=3_000_000))
        await trio.sleep(0.001)
        started = trio.current_time()
        client.send(infer(2, row(2), timeout_us=20_000), infer(3, row(3), timeout_us=100))
        await trio.sleep_until(started + 0.000_099)
        assert not client.outcomes()
        await trio.sleep_until(started + 0.000_101)
        assert list(client.outcomes()) == [3]
        await trio.sleep_until(started + 0.019_999)
        assert list(client.outcomes()) == [3]
        await trio.sleep_until(started + 0.020_001)
        assert list(client.outcomes()) == [3, 2]
        await trio.sleep(3)
        assert isinstance(client.outcomes()[1], Result)
        server.assert_at_rest()


async def test_a_cancelled_request_inside_a_batch_leaves_a_ghost_until_the_batch_is_back(
    autojump_clock: MockClock,
) -> None:
    async with virtual_server(service_ns=lambda rows: 100 * MS) as server:
        client = server.connect()
        client.send(infer(1, row(1)))
        await trio.sleep(0.01)
        client.send(cancel_frame(1))
        await trio.sleep(0.01)
        assert isinstance(client.outcomes()[1], Error)
        assert server.small.slots.leased == 1
        await trio.sleep(0.1)
        server.assert_at_rest()
        assert len(client.outcomes()) == 1


async def test_completions_do_not_wait_behind_a_crowd(autojump_clock: MockClock) -> None:
    """More connections are ready than one poll reports, and they come before the worker in its list."""
    async with virtual_server(ServerLimits(turn_frames=32)) as server:
        client = server.connect()
        client.send(infer(1, row(1)))
        await wait_all_tasks_blocked()
        crowd = [server.connect(bound=False) for _ in range(600)]
        server.network.unregister(server.worker.fileno())
        server.network.register(server.worker.fileno(), 1)
        await trio.sleep(0.01)
        for other in crowd:
            other.send(*(ping_frame(rid) for rid in range(1, 4)))
        client.send(infer(2, row(2)))
        autojump_clock.jump(0.01)
        turns = 0
        while len(client.outcomes()) < 2:
            await trio.lowlevel.checkpoint()
            turns += 1
            autojump_clock.jump(0.001)
        assert turns < 10
        assert not all(other.read() for other in crowd)
