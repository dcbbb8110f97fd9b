"""Two paths, one meaning: requests one by one, as a run of columns, and gathered from many connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.play_client import Client
from tests.engine.play_models import body_of, input_rows
from tests.engine.world import MS, World
from trioserve.config import ServerLimits
from trioserve_protocol import Infer, InferRun

NEVER = 10**9
SCALAR, COLUMNS = NEVER, 4


class Burst(NamedTuple):
    """Requests that one connection sends in one go, and what happens after them."""

    owner: int
    requests: list[tuple[int, int, int]]
    """Distance to the id before (0 repeats it), timeout in microseconds, flags."""
    finish: bool
    pass_ns: int


def one_of(*values: int) -> st.SearchStrategy[int]:
    return st.sampled_from(values)


BURSTS = st.builds(
    Burst,
    st.integers(0, 1),
    st.lists(
        st.tuples(one_of(1, 1, 1, 1, 2, 50, 0), one_of(0, 0, 0, 800, 3000), one_of(0, 0, 0, 1, 3)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
    one_of(0, 0, MS // 2, MS),
)


def transcript(client: Client) -> list[tuple[Any, ...]]:
    """All that a client got, in order, times included."""
    return [
        tuple(bytes(value) if isinstance(value, memoryview) else value for value in frame)
        for frame in client.frames
    ]


def play(bursts: Sequence[Burst], limits: ServerLimits, vector_from: int) -> tuple[World, list[Client]]:
    world = World(limits=limits)
    clients = [world.client(vector_from=vector_from) for _ in range(2)]
    rids = [0, 0]
    for burst in bursts:
        client, sent = clients[burst.owner], list[int]()
        gaps, timeouts_us, flags = zip(*burst.requests, strict=True)
        for gap in gaps:
            rids[burst.owner] += gap
            sent.append(max(1, rids[burst.owner]))
        client.run(sent, timeouts_us=timeouts_us, flags=flags)
        world.check()
        world.turn()
        if burst.finish and world.executor.sent:
            world.executor.finish()
        world.pass_time(burst.pass_ns)
        world.check()
    world.end()
    return world, clients


@given(
    st.lists(BURSTS, min_size=1, max_size=6),
    st.sampled_from([256, 9]),
    st.sampled_from([1 << 30, 24 * 11]),
    st.sampled_from([1 << 30, 24 * 7]),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_a_run_is_what_its_requests_are_one_by_one(
    bursts: list[Burst], window: int, queued_nbytes: int, window_nbytes: int
) -> None:
    limits = ServerLimits(
        credit_requests=window, max_queued_nbytes=queued_nbytes, credit_nbytes=window_nbytes
    )
    scalar, one_by_one = play(bursts, limits, SCALAR)
    columns, as_runs = play(bursts, limits, COLUMNS)
    for one, other in zip(one_by_one, as_runs, strict=True):
        assert transcript(one) == transcript(other)
        assert one.session.taken == other.session.taken
        assert one.session.last_rid == other.session.last_rid
    assert scalar.executor.ranges() == columns.executor.ranges()
    for lane, other_lane in zip(scalar.engine.lanes, columns.engine.lanes, strict=True):
        counted, other_counted = lane.stats.snapshot(), other_lane.stats.snapshot()
        assert counted == other_counted
        assert lane.gate.rows.high_water == other_lane.gate.rows.high_water


@given(st.integers(1, 20), st.sampled_from([1 << 30, 24 * 11]), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_a_gathered_run_is_what_its_requests_are_one_by_one(
    connections: int, queued_nbytes: int, before: int
) -> None:
    def play_gathered(*, gathered: bool) -> list[list[tuple[Any, ...]]]:
        world = World(limits=ServerLimits(max_queued_nbytes=queued_nbytes))
        first = world.client()
        for rid in range(1, before + 1):
            first.infer(rid)
        clients = [world.client() for _ in range(connections)]
        sessions = [client.session for client in clients]
        bodies = [body_of(*input_rows(session.index, 5, 1)) for session in sessions]
        for client in clients:
            client.owe([5])
        if gathered:
            run = InferRun(
                connections,
                1,
                1,
                b"",
                np.full(connections, 5, np.uint64),
                np.full(connections, 8, np.uint16),
                np.arange(connections, dtype=np.uint32) * 900,
                np.stack([np.frombuffer(body, np.uint8) for body in bodies]),
            )
            world.intake.admit_across(world.lane("wide"), sessions, run, world.clock.ns)
        else:
            for number, (client, body) in enumerate(zip(clients, bodies, strict=True)):
                client.offer(Infer(5, 1, 8, number * 900, 1, b"", memoryview(body)))
        world.check()
        world.turn()
        world.pass_time(2 * MS)
        world.end()
        return [transcript(client) for client in clients]

    assert play_gathered(gathered=True) == play_gathered(gathered=False)


def frames_of(client: Client, rid: int, many: int, piece: int | None) -> None:
    """The same frame whole, or in pieces as a large one."""
    if piece is None:
        if many:
            client.many(rid, many)
        else:
            client.infer(rid, rows=2)
        return
    body = client.begin(rid, rows=many or 2, many=bool(many), flags=8)
    while body.is_open and not body.send(piece):
        pass


@given(
    st.lists(st.tuples(one_of(0, 0, 1, 3, 9, 20), st.booleans()), min_size=1, max_size=6), st.integers(1, 60)
)
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_what_becomes_of_a_frame_does_not_depend_on_how_it_was_cut(
    program: list[tuple[int, bool]], piece: int
) -> None:
    def play_frames(piece: int | None) -> list[tuple[Any, ...]]:
        world = World(limits=ServerLimits(credit_requests=12, max_queued_nbytes=24 * 14))
        client = world.client()
        for number, (many, finish) in enumerate(program):
            frames_of(client, 100 * number + 1, many, piece)
            world.check()
            world.turn()
            if finish and world.executor.sent:
                world.executor.finish()
        world.end()
        return transcript(client)

    assert play_frames(None) == play_frames(piece)
