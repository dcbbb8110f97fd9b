"""Inputs that kill workers: suspected, run alone, refused; and what nobody may be blamed for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.conftest import MakeWorld
from tests.engine.play_client import Client
from tests.engine.play_models import body_of, input_rows
from tests.engine.world import World
from trioserve.engine import _quarantine as module
from trioserve.engine._quarantine import fingerprint, fingerprints
from trioserve_protocol import ErrorCode, InferRun

OK = ErrorCode.OK
LOST = ErrorCode.WORKER_LOST
POISON = ErrorCode.POISON_INPUT
BAD = 6
"""Id of the request that kills: the payload of a request follows from its id and its client."""


def restart(world: World, *, killed: bool = False) -> None:
    """The worker dies of what it runs, and the next one is there."""
    world.executor.die()
    world.executor_stage.collect(world.clock.ns)
    world.executor_stage.reaped(restarting=True, killed=killed)
    world.executor.start()


def blamed_once(world: World, *, model: str = "wide") -> Client:
    """Requests 5 to 8 were with a worker when it died."""
    client = world.client()
    client.run(range(5, 9), model)
    world.turn()
    restart(world)
    assert client.codes(range(5, 9)) == [LOST] * 4
    return client


def convicted(world: World) -> Client:
    """Request 6 has killed two."""
    client = blamed_once(world)
    client.infer(BAD)
    world.turn()
    restart(world)
    assert client.code(BAD) == LOST
    return client


def payload_of(client: Client, rid: int) -> bytes:
    """What a client sends under an id."""
    return body_of(*input_rows(client.session.index, rid, 1))


def known(world: World, model: str = "wide") -> tuple[int, int]:
    found = world.lane(model).door.quarantine.snapshot()
    return found["suspects"], found["refused"]


def sizes(world: World) -> list[int]:
    """Rows of the batches that the worker has."""
    return [batch.rows for batch in world.executor.sent]


def test_suspects_run_alone_and_are_cleared(make_world: MakeWorld) -> None:
    world = make_world(depth=3)
    client = blamed_once(world)
    assert known(world) == (4, 0)
    for rid in (1, 2, BAD, 3):
        client.infer(rid)
    world.turn()
    assert sizes(world) == [2, 1, 1]
    world.settle()
    assert client.codes([1, 2, BAD, 3]) == [OK] * 4
    assert known(world) == (3, 0)
    client.infer(BAD)
    client.infer(1)
    world.turn()
    assert sizes(world) == [2]


def test_a_second_death_is_a_proof_and_the_input_is_refused_at_admission(world: World) -> None:
    client = convicted(world)
    assert known(world) == (3, 1)
    world.settle()
    client.infer(BAD)
    assert client.code(BAD) == POISON
    assert not client.replies[BAD].frame.retryable
    assert world.lane("wide").stats.errors[POISON] == 1
    client.run(range(1, 9))
    world.settle()
    assert client.codes(range(1, 9)) == [OK] * 5 + [POISON] + [OK] * 2
    assert known(world) == (0, 1)
    assert world.lane("wide").door.quarantine.found == 1


def test_it_is_refused_by_every_way_it_can_come(world: World) -> None:
    client = convicted(world)
    client.many(5, 3)
    world.settle()
    assert client.codes([5, 6, 7]) == [OK, POISON, OK]
    other = world.client()
    other.infer(BAD)
    world.settle()
    assert other.code(BAD) == OK, "the payload of another client"
    other.infer(10, payload=payload_of(client, BAD))
    assert other.code(10) == POISON


def test_it_is_found_among_requests_that_come_together_from_several_connections(world: World) -> None:
    client = convicted(world)
    others = [world.client() for _ in range(3)]
    payloads = [payload_of(client, 1), payload_of(client, BAD), payload_of(client, 2)]
    for other in others:
        other.owe([1])
    run = InferRun(
        count=3,
        rids=np.ones(3, np.uint64),
        handle=1,
        flags=np.ones(3, np.uint16),
        timeouts_us=np.zeros(3, np.uint32),
        rows=1,
        meta=b"",
        payload=np.stack([np.frombuffer(payload, np.uint8) for payload in payloads]),
    )
    lane = world.lane("wide")
    world.intake.admit_across(lane, [other.session for other in others], run, world.clock.ns)
    world.settle()
    assert [other.code(1) for other in others] == [OK, POISON, OK]


def test_a_request_of_several_rows_is_one_input(world: World) -> None:
    client = world.client()
    client.infer(BAD, rows=3)
    world.turn()
    restart(world)
    client.infer(1)
    client.infer(BAD, rows=3)
    client.infer(BAD + 1, rows=2)
    world.turn()
    assert sizes(world) == [1]
    world.executor.finish()
    world.turn()
    assert sizes(world) == [3]
    restart(world)
    client.infer(BAD, rows=3)
    client.infer(BAD + 1, rows=2)
    world.settle()
    assert client.codes([BAD, BAD + 1]) == [POISON, OK]


def test_texts_are_known_by_their_tokens(world: World) -> None:
    client = world.client()

    def send(*rids: int) -> None:
        for rid in rids:
            client.texts(rid)
        world.turn()
        while world.tokenizer.sent:
            world.tokenizer.finish()
        world.turn()

    send(1, BAD)
    restart(world)
    send(2, BAD)
    assert sizes(world) == [1]
    world.executor.finish()
    world.turn()
    restart(world)
    send(3, BAD)
    world.settle()
    assert client.codes([1, 2, 3, BAD]) == [LOST, OK, OK, POISON]


def test_what_was_finished_or_queued_is_not_blamed(make_world: MakeWorld) -> None:
    world = make_world(depth=3)
    client = world.client()
    client.run(range(1, 13))
    world.turn()
    assert sizes(world) == [4, 4, 4]
    world.executor.finish(collect=False)
    restart(world)
    assert client.codes(range(1, 13)) == [OK] * 4 + [LOST] * 4 + [None] * 4
    assert known(world) == (4, 0)
    world.turn()
    assert sizes(world) == [4]


def test_what_was_never_sent_is_not_blamed(world: World) -> None:
    client = blamed_once(world)
    client.infer(BAD)
    world.executor.die()
    world.engine.decide(world.clock.ns)
    assert client.codes([BAD]) == [None]
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    assert known(world) == (4, 0)
    world.settle()
    assert client.code(BAD) == OK


def test_results_that_wait_on_the_link_are_taken_before_a_send_that_fails(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 5))
    world.turn()
    world.executor.finish(collect=False)
    world.executor.die()
    client.infer(9)
    world.engine.decide(world.clock.ns)
    assert client.codes([1, 2, 3, 4, 9]) == [OK] * 4 + [None]
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    assert known(world) == (0, 0)


def test_those_who_did_not_wait_any_more_are_blamed_too(world: World) -> None:
    client = world.client()
    client.infer(BAD)
    world.turn()
    client.cancel(BAD)
    restart(world)
    assert known(world) == (1, 0)


def test_a_worker_that_was_killed_from_outside_proves_less(world: World) -> None:
    client = blamed_once(world)
    for death, expected in ((1, (4, 0)), (2, (3, 1))):
        client.infer(BAD)
        world.turn()
        restart(world, killed=True)
        assert (death, known(world)) == (death, expected)


def test_surviving_clears_that_too(world: World) -> None:
    client = blamed_once(world)
    for _ in range(3):
        client.infer(BAD)
        world.turn()
        restart(world, killed=True)
        client.infer(BAD)
        world.settle()
        assert client.code(BAD) == OK
        assert known(world) == (3, 0)
        client.infer(BAD)
        world.turn()
        restart(world, killed=True)
        assert known(world) == (4, 0)


def test_a_death_in_company_proves_nothing(world: World) -> None:
    """Two requests with one payload, one of them in a batch that was cut before anything was known."""
    client = blamed_once(world)
    world.lane("wide").door.quarantine.is_active = False
    client.run(range(5, 9))
    world.turn()
    restart(world)
    assert known(world) == (4, 0)


def test_it_is_all_forgotten_after_a_while(world: World) -> None:
    client = convicted(world)
    world.pass_time(int(600e9))
    client.infer(BAD)
    client.infer(BAD + 1)
    world.turn()
    assert sizes(world) == [2]
    assert not world.lane("wide").door.quarantine.is_active


def test_another_model_is_not_concerned(world: World) -> None:
    client = blamed_once(world, model="narrow")
    assert known(world, "narrow") == (4, 0)
    client.run(range(5, 9), "wide")
    world.turn()
    assert sizes(world) == [4]


def test_the_tables_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 3)
    blamed_once(world)
    assert known(world) == (3, 0)


def test_it_can_be_switched_off(world: World) -> None:
    world.lane("wide").door.quarantine.keep_ns = 0
    client = convicted(world)
    assert known(world) == (0, 0)
    client.infer(BAD)
    world.settle()
    assert client.code(BAD) == OK


def test_without_suspects_nothing_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isolate", "refuses", "may_refuse", "clear"):
        monkeypatch.setattr(module.Quarantine, name, pytest.fail)
    client = world.client()
    client.run(range(1, 9))
    client.infer(10)
    world.settle()
    assert client.codes([*range(1, 9), 10]) == [OK] * 9


def test_what_waited_when_it_was_proved_is_refused_before_it_is_cut(world: World) -> None:
    client = blamed_once(world)
    client.infer(BAD)
    world.turn()
    client.infer(50, payload=payload_of(client, BAD))
    client.infer(51)
    client.infer(52, payload=payload_of(client, BAD))
    restart(world)
    world.settle()
    assert client.codes([BAD, 50, 51, 52]) == [LOST, POISON, OK, POISON]


@given(st.lists(st.binary(min_size=20, max_size=20), min_size=1, max_size=5))
def test_one_input_and_a_column_of_them_have_the_same_fingerprints(rows: list[bytes]) -> None:
    column = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 20)
    assert fingerprints(column).tolist() == [fingerprint(memoryview(row)) for row in rows]


def test_inputs_of_a_few_bytes_have_no_fingerprint() -> None:
    assert fingerprint(memoryview(b"1234567")) == 0
    assert fingerprints(np.ones((3, 7), np.uint8)).tolist() == [0, 0, 0]
