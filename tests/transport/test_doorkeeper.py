"""Connections that must say who they are, in virtual time over a network in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.e2e.harness import infer, row
from tests.transport.virtual import VirtualClient, VirtualServer, values, virtual_server
from trioserve.config import ServerLimits
from trioserve.transport import Access, AdminLevel, Entrance, TokenFile
from trioserve.transport._doorkeeper import GREETING_NBYTES
from trioserve_protocol import (
    Admin,
    Error,
    ErrorCode,
    Event,
    Feature,
    FrameType,
    Pong,
    Tag,
    Welcome,
    admin_frame,
    bind_frame,
    frame,
    frame_bytes,
    ping_frame,
    tlv,
)

SECRETS = {"web": ("infer", "one"), "ops": ("admin", "two"), "all": ("infer,admin", "three")}


@pytest.fixture
def entrance(tmp_path: Path) -> Entrance:
    """One that demands a token, and allows everything."""
    file = tmp_path / "tokens"
    lines = [
        f"{name} {roles} {hashlib.sha256(secret.encode()).hexdigest()}"
        for name, (roles, secret) in SECRETS.items()
    ]
    file.write_text("\n".join(lines))
    return Entrance(Access(admin=AdminLevel.ALL), TokenFile(str(file), 0))


def hello(token: str | bytes | None, rid: int = 1) -> bytes:
    meta = b"" if token is None else tlv(Tag.AUTH, token if isinstance(token, bytes) else token.encode())
    return frame_bytes(frame(FrameType.HELLO, rid=rid, meta=meta))


def connect(server: VirtualServer, entrance: Entrance, address: str = "192.0.2.1") -> VirtualClient:
    return server.connect(bound=False, entrance=entrance, address=address)


def refusal(client: VirtualClient) -> Error:
    event = client.read()[-1]
    assert isinstance(event, Error)
    assert (event.rid, event.code) == (0, ErrorCode.UNAUTHENTICATED)
    return event


async def test_a_token_lets_in_whatever_follows_it(entrance: Entrance, autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        client.send(
            hello("one"), bind_frame(2, 1, "small"), infer(3, row(4)), infer(4, bytes(80_000), handle=2)
        )
        await trio.sleep(0.01)
        welcome = client.read()[0]
        assert isinstance(welcome, Welcome)
        assert welcome.features.may == Feature.AUTH
        assert values(client.outcomes()[3])[0] == 8
        assert client.outcomes()[4].code == ErrorCode.HANDLE_NOT_BOUND
        await trio.sleep(60)
        client.send(infer(5, row(5)))
        await trio.sleep(0.01)
        assert values(client.outcomes()[5])[0] == 10
        found = server.group.statistics()["authentication"]
        assert found == {"unauthenticated": 0, "refused": 0, "let_in": {"web": 1}, "handshakes": {}}


@pytest.mark.parametrize("split", [1, 31, 33, 40, 60])
async def test_a_token_may_come_in_pieces(split: int, entrance: Entrance, autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        data = hello("three") + bind_frame(2, 1, "small") + infer(3, row(4))
        client.send(data[:split])
        await trio.sleep(0.5)
        client.send(data[split:])
        await trio.sleep(0.01)
        assert values(client.outcomes()[3])[0] == 8


FIRST_WORDS = {
    "a wrong token": hello("four"),
    "a digest for a token": hello(hashlib.sha256(b"one").digest()),
    "no token": hello(None),
    "INFER": infer(7, row(1)),
    "INFER by name": infer(7, row(1), handle=0, meta=tlv(Tag.MODEL, "small")),
    "BIND": bind_frame(7, 1, "small"),
    "ADMIN": admin_frame(7, b'{"op": "health"}'),
    "CANCEL": frame_bytes(frame(FrameType.CANCEL, rid=7)),
    "a large body": infer(7, bytes(80_000), handle=2),
    "a refused frame": frame_bytes(frame(FrameType.INFER, rid=0)),
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "a PING, then a HELLO": ping_frame(1) + hello("one"),
    "a HELLO that lies": hello("one")[:24] + b"\xff\xff" + hello("one")[26:],
}


@pytest.mark.parametrize("first", FIRST_WORDS.values(), ids=FIRST_WORDS)
async def test_nothing_else_does(first: bytes, entrance: Entrance, autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        client.send(first, hello("one"), bind_frame(2, 1, "small"), infer(3, row(4)))
        await trio.sleep(0.5)
        assert not [event for event in client.read() if not isinstance(event, Pong)], "not at once"
        await trio.sleep(0.7)
        refusal(client)
        assert client.end.ended
        assert server.engine.lanes[0].stats.received == 0
        assert server.group.statistics()["authentication"]["refused"] == 1
        await trio.sleep(2)
        assert server.group.connections == 0
        assert server.group.statistics()["authentication"]["unauthenticated"] == 0
        server.assert_at_rest()


async def test_a_ping_is_answered_and_silence_is_not(entrance: Entrance, autojump_clock: MockClock) -> None:
    async with virtual_server(ServerLimits(unauthenticated_s=3)) as server:
        silent, pinging, dripping = (connect(server, entrance) for _ in range(3))
        for number in range(6):
            pinging.send(ping_frame(number + 1))
            dripping.send(hello("one")[number : number + 1])
            await trio.sleep(0.4)
        assert [type(event) for event in pinging.read()] == [Pong] * 6
        await trio.sleep(1)
        for client in (silent, pinging, dripping):
            assert "within 3 s" in refusal(client).message
            assert client.end.ended


async def test_a_flood_before_the_token_is_not_kept(entrance: Entrance, autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        client.send(ping_frame(1, bytes(1024)) * 100)
        await trio.sleep(1.3)
        answered = [event for event in client.read() if isinstance(event, Pong)]
        assert len(answered) == GREETING_NBYTES // 1056
        assert "8,192 bytes" in refusal(client).message


async def test_roles(entrance: Entrance, autojump_clock: MockClock) -> None:
    async def answers(secret: str, most: Access) -> list[int]:
        client = connect(server, entrance._replace(access=most))
        client.send(hello(secret), bind_frame(2, 1, "small"))
        client.send(infer(3, row(1), handle=0, meta=tlv(Tag.MODEL, "small")))
        for rid, name in enumerate(("health", "models", "statistics"), start=4):
            client.send(admin_frame(rid, b'{"op": "%s"}' % name.encode()))
        await trio.sleep(0.01)
        codes = {event.rid: code_of(event) for event in client.read()}
        return [codes.get(rid, 0) for rid in range(2, 7)]

    def code_of(event: Event) -> int:
        return event.code if isinstance(event, Error) else 0

    denied = int(ErrorCode.PERMISSION_DENIED)
    everything = Access(admin=AdminLevel.ALL)
    async with virtual_server() as server:
        assert await answers("one", everything) == [0, 0, 0, 0, denied]
        assert await answers("two", everything) == [denied, denied, 0, 0, 0]
        assert await answers("three", everything) == [0, 0, 0, 0, 0]
        assert await answers("three", Access(admin=AdminLevel.HEALTH)) == [0, 0, 0, denied, denied]


@pytest.mark.parametrize("level, answered", [(0, 1), (1, 2), (2, 3), (3, 3)])
async def test_what_an_open_entrance_answers(level: int, answered: int, autojump_clock: MockClock) -> None:
    async with virtual_server() as server:
        client = connect(server, Entrance(Access(admin=AdminLevel(level))))
        for rid, name in enumerate(("health", "models", "statistics"), start=4):
            client.send(admin_frame(rid, b'{"op": "%s"}' % name.encode()))
        await trio.sleep(0.01)
        assert [isinstance(event, Admin) for event in client.read()] == [n < answered for n in range(3)]


async def test_an_operation_that_is_not_known_to_be_harmless_needs_all(
    entrance: Entrance, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.transport._control.ANSWERED_FROM", {})
    async with virtual_server() as server:
        open_client = connect(server, Entrance())
        open_client.send(admin_frame(1, b'{"op": "health"}'))
        admin = connect(server, entrance)
        admin.send(hello("two"), admin_frame(2, b'{"op": "health"}'))
        await trio.sleep(0.01)
        assert open_client.read()[0].code == ErrorCode.PERMISSION_DENIED
        assert isinstance(admin.read()[1], Admin)


# ---------------------------------------------------------------- how many


async def test_a_thousand_connections_of_one_address(autojump_clock: MockClock) -> None:
    async with virtual_server(ServerLimits(max_connections_per_address=100)) as server:
        crowd = [server.connect(bound=False, address="192.0.2.1") for _ in range(1000)]
        other = server.connect(address="192.0.2.2")
        local = [server.connect(bound=False) for _ in range(150)]
        other.send(infer(1, row(1)))
        await trio.sleep(0.01)
        assert values(other.outcomes()[1])[0] == 2
        told = [event for client in crowd for event in client.read()]
        assert {event.code for event in told} == {ErrorCode.TOO_MANY_CONNECTIONS}
        assert {event.message for event in told} == {"this address has 100 connections"}
        assert not any(client.end.ended for client in (*crowd[:100], other, *local))
        assert all(client.end.ended for client in crowd[100:])
        await trio.sleep(2)
        found = server.group.statistics()
        assert found["turned_away_for"] == {"address": 900}
        assert (found["open"], found["addresses"]) == (251, 2)
        crowd[0].end.finish()
        await wait_all_tasks_blocked()
        late = server.connect(bound=False, address="192.0.2.1")
        late.send(ping_frame(1))
        await wait_all_tasks_blocked()
        assert isinstance(late.read()[0], Pong)
    assert server.group.statistics()["addresses"] == 0


async def test_strangers_are_few_and_leave_room_for_each_other(
    entrance: Entrance, autojump_clock: MockClock
) -> None:
    async with virtual_server(ServerLimits(max_unauthenticated=3)) as server:
        known = [connect(server, entrance) for _ in range(3)]
        for client in known:
            client.send(hello("one"))
        await trio.sleep(0.01)
        strangers = [connect(server, entrance) for _ in range(4)]
        await trio.sleep(0.01)
        assert [len(client.read()) for client in strangers] == [0, 0, 0, 1]
        assert strangers[3].read()[0].code == ErrorCode.TOO_MANY_CONNECTIONS
        strangers[0].send(hello("two"))
        strangers[1].end.reset()
        await trio.sleep(0.01)
        again = [connect(server, entrance) for _ in range(2)]
        for client in again:
            client.send(hello("one"))
        await trio.sleep(0.01)
        assert [type(client.read()[0]) for client in again] == [Welcome, Welcome]
        assert server.group.statistics()["turned_away_for"] == {"unauthenticated": 1}


async def test_guessing_takes_time(entrance: Entrance, autojump_clock: MockClock) -> None:
    """As many guesses at once as there may be strangers, and no more until they have been answered."""
    async with virtual_server(ServerLimits(max_connections_per_address=4)) as server:
        tried = 0
        for _ in range(100):
            if server.group.connections < 4:
                client = connect(server, entrance)
                client.send(hello(f"guess {tried}"))
                tried += 1
            await trio.sleep(0.1)
        assert tried <= 4 * 10


@pytest.mark.parametrize("how", ["finish", "reset"])
@pytest.mark.parametrize("words", [b"", hello("one")[:20], hello("wrong")])
async def test_strangers_that_leave(
    how: str, words: bytes, entrance: Entrance, autojump_clock: MockClock
) -> None:
    async with virtual_server() as server:
        client = connect(server, entrance)
        client.send(words)
        await trio.sleep(0.01)
        getattr(client.end, how)()
        await trio.sleep(0.01)
        assert server.group.connections == 0
        assert server.group.statistics()["authentication"]["unauthenticated"] == 0
        await trio.sleep(10)
