"""Connections: their credit, their end in every state, and whose index is whose."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeWorld
from tests.engine.world import World
from trioserve.admission import Account
from trioserve.engine._session import Session, SessionTable
from trioserve_protocol import ErrorCode


class Nowhere:
    """A sink that must not be used."""

    def write(self, data: object) -> None:
        raise AssertionError

    write_parts = write_soon = write


def session(requests: int = 4, nbytes: int = 100) -> Session:
    return Session(0, Nowhere(), requests, nbytes, 1 << 20)


@pytest.mark.parametrize(
    ("inflight", "ghosts", "inflight_nbytes", "body_nbytes", "credit"),
    [
        (0, 0, 0, 10, 4),
        (0, 0, 0, 40, 2),
        (0, 0, 0, 1000, 1),
        (0, 0, 0, 0, 4),
        (1, 0, 10, 10, 3),
        (1, 2, 30, 10, 1),
        (0, 4, 40, 10, 0),
        (9, 0, 90, 0, 0),
        (1, 0, 95, 10, 0),
        (1, 0, 95, 0, 3),
        (1, 0, 200, 10, 0),
    ],
)
def test_credit(inflight: int, ghosts: int, inflight_nbytes: int, body_nbytes: int, credit: int) -> None:
    one = session()
    one.inflight, one.ghosts, one.inflight_nbytes = inflight, ghosts, inflight_nbytes
    assert one.credit(body_nbytes) == credit
    idle = not inflight and not ghosts
    assert one.may_send(4, body_nbytes) == (idle or credit >= 4)


def test_bindings() -> None:
    one = session()
    lane: object = object()
    them = Account()
    one.bind(1, lane, them)  # type: ignore[arg-type]
    assert (one.lanes, one.accounts) == ({1: lane}, {1: them})
    one.bind(1, lane, None)  # type: ignore[arg-type]
    assert one.accounts == {}
    assert one.unbind(1)
    assert not one.unbind(1)


def test_an_index_is_used_again_when_nothing_carries_it() -> None:
    table = SessionTable()
    one, two = (table.open(Nowhere(), 1, 1, 1) for _ in range(2))
    assert (one.index, two.index) == (0, 1)
    one.ghosts = 1
    table.remove(one)
    assert len(table._free) == 0
    assert table.open(Nowhere(), 1, 1, 1).index == 2
    one.ghosts = 0
    table.ghosts_gone(one)
    assert table.open(Nowhere(), 1, 1, 1).index == 0


def test_ghosts_that_go_before_a_session_is_removed_free_nothing_twice() -> None:
    table = SessionTable()
    one = table.open(Nowhere(), 1, 1, 1)
    table.ghosts_gone(one)
    table.remove(one)
    assert len(table._free) == 1


# ---------------------------------------------------------------- closed in every state


def test_closed_with_requests_in_the_queue(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.many(2, 3)
    client.texts(10)
    client.close()
    assert world.engine.unanswered == 0
    world.check_rest()


def test_closed_with_requests_running(world: World) -> None:
    """The results of its ghosts reach nobody, also not the next connection."""
    client = world.client()
    client.run(range(1, 9))
    world.turn()
    client.close()
    assert client.session.ghosts == 4
    others = [world.client() for _ in range(2)]
    assert client.session.index not in {other.session.index for other in others}
    others[0].infer(1)
    world.settle()
    assert others[0].code(1) == ErrorCode.OK
    assert world.client().session.index == client.session.index


def test_closed_with_texts_in_the_tokenizer(world: World) -> None:
    client = world.client()
    client.texts(1, [3, 4])
    world.turn()
    client.close()
    world.check()
    world.settle()
    assert not world.executor.batches
    world.check_rest()


def test_closed_while_its_worker_is_dying(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    world.executor.die()
    world.turn()
    client.close()
    assert len(world.engine.sessions._free) == 0
    world.executor_stage.reaped(restarting=True)
    assert len(world.engine.sessions._free) == 1
    world.executor.start()


def test_many_connections_come_and_go(make_world: MakeWorld) -> None:
    world = make_world()
    for round_number in range(5):
        clients = [world.client() for _ in range(4)]
        for number, client in enumerate(clients):
            client.infer(round_number * 10 + number + 1)
        world.turn()
        for client in clients[::2]:
            client.close()
        world.settle()
        for client in clients[1::2]:
            client.close()
    assert len(world.engine.sessions.by_index) == 4
