"""How requests end: once, with what is theirs, and with all accounts closed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.config import TensorConfig
from trioserve.engine._batch import slot_at
from trioserve.engine._terminal import JOIN_NBYTES
from trioserve_protocol import CutReason, ErrorCode, Flag, Timing

OK = ErrorCode.OK
RAISED = int(ErrorCode.MODEL_RAISED)


# ---------------------------------------------------------------- failures of single rows


def test_one_bad_row_of_many(world: World) -> None:
    client, other = world.client(), world.client()
    for rid in (1, 2):
        client.infer(rid)
        other.infer(rid)
    world.turn()
    world.executor.finish(failures=[(1, RAISED, "not a number")])
    assert client.codes() == [OK, OK]
    assert other.codes() == [ErrorCode.MODEL_RAISED, OK]
    assert other.replies[1].message == "not a number"


def test_a_bad_row_fails_its_request(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, rows=3)
    world.turn()
    world.executor.finish(failures=[(2, RAISED, "first"), (3, RAISED, "second")])
    assert client.codes() == [OK, ErrorCode.MODEL_RAISED]
    assert client.replies[2].message == "first"


def test_a_bad_row_whose_request_is_answered_already(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2)
    world.turn()
    client.cancel(1)
    world.executor.finish(failures=[(0, RAISED, "too late")])
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT, OK]


def test_a_failed_batch_fails_what_is_left_of_it(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, rows=2)
    client.infer(3)
    world.turn()
    client.cancel(1)
    world.executor.finish(code=RAISED, message="out of luck")
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT] + [ErrorCode.MODEL_RAISED] * 2
    assert world.lane("wide").stats.failed == 2


def test_a_position_is_found_in_its_range() -> None:
    ranges = [(8, 2), (0, 1), (20, 3)]
    assert [slot_at(ranges, position) for position in range(6)] == [8, 9, 0, 20, 21, 22]
    with pytest.raises(AssertionError, match="outside the batch"):
        slot_at(ranges, 6)


# ---------------------------------------------------------------- cancelled


def test_cancelled_in_the_queue(world: World) -> None:
    client = world.client()
    for rid in (1, 2, 3):
        client.infer(rid)
    client.cancel(2)
    assert client.codes() == [None, ErrorCode.CANCELLED_BY_CLIENT, None]
    world.check()
    world.turn()
    assert world.executor.ranges() == [[(0, 1), (2, 1)]]


def test_cancelled_while_running(world: World) -> None:
    """The reply goes out at once, the row is free when the worker has let go."""
    client = world.client()
    client.infer(1, rows=2)
    client.infer(2)
    world.turn()
    client.cancel(1)
    assert client.code(1) == ErrorCode.CANCELLED_BY_CLIENT
    assert world.lane("wide").slots.leased == 3
    assert (client.session.inflight, client.session.ghosts) == (1, 1)
    world.executor.finish()
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT, OK]
    assert world.lane("wide").slots.leased == 0


def test_cancelled_after_its_end(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.settle()
    client.cancel(1)
    client.cancel()
    client.cancel(99)
    client.infer(2)
    client.cancel(1)
    client.cancel(99)
    assert client.codes() == [OK, None]


def test_cancelled_by_range_and_all_at_once(world: World) -> None:
    client, other = world.client(), world.client()
    for rid in range(1, 7):
        client.infer(rid, "wide" if rid % 2 else "narrow")
        other.infer(rid)
    client.cancel(2, 3)
    assert client.waiting == {1, 5, 6}
    client.cancel()
    assert not client.waiting
    assert len(other.waiting) == 6


def test_a_row_is_not_handed_out_while_a_worker_may_write_it(make_world: MakeWorld) -> None:
    world = make_world(configs=[fixed_config("wide", slots=4)])
    client = world.client()
    client.run(range(1, 9))
    client.cancel(1, 8)
    for rid in range(11, 15):
        client.infer(rid)
    world.turn()
    client.cancel(11, 4)
    client.infer(20)
    assert client.code(20) == ErrorCode.SHED
    world.executor.finish()
    client.infer(21)
    world.settle()
    assert client.code(21) == OK


# ---------------------------------------------------------------- replies


def test_replies_of_a_batch_go_out_in_one_write_a_connection(world: World) -> None:
    one, two = world.client(), world.client()
    one.infer(1)
    two.infer(1)
    one.infer(2)
    two.infer(2)
    world.turn()
    world.executor.finish()
    assert (one.writes, two.writes) == (1, 1)
    assert (one.order, two.order) == ([1, 2], [1, 2])


@pytest.mark.parametrize("owners", [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 2, 3], [1, 0, 0, 1]])
def test_replies_reach_their_owners_in_any_order_of_arrival(world: World, owners: list[int]) -> None:
    clients = [world.client() for _ in range(4)]
    for rid, owner in enumerate(owners, 1):
        clients[owner].infer(rid)
    world.turn()
    world.executor.finish()
    for number, client in enumerate(clients):
        assert client.order == [rid for rid, owner in enumerate(owners, 1) if owner == number]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_times_of_a_plain_reply(world: World, rows: int) -> None:
    client = world.client()
    client.infer(100)
    world.turn()
    for rid in range(1, rows + 1):
        client.infer(rid)
    world.clock.ns += 3 * MS
    world.executor.finish()
    world.turn()
    world.clock.ns += 4 * MS
    world.executor.finish()
    for rid in range(1, rows + 1):
        reply = client.replies[rid].frame
        assert (reply.server_us, reply.queue_us) == (7000, 3000)


def test_special_and_plain_requests_in_one_batch(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, flags=int(Flag.SAMPLED))
    client.infer(3)
    client.infer(4, flags=int(Flag.NOREPLY))
    world.settle()
    assert client.codes() == [OK] * 4
    assert [bool(client.replies[rid].frame.meta) for rid in range(1, 5)] == [False, True, False, False]
    assert [bool(client.replies[rid].frame.payload) for rid in range(1, 5)] == [True, True, True, False]


def test_the_timing_of_a_sampled_request(world: World) -> None:
    client = world.client()
    begun_ns = world.clock.ns
    client.infer(1, flags=int(Flag.SAMPLED))
    client.infer(2)
    world.clock.ns += MS
    world.turn()
    world.clock.ns += 5 * MS
    world.executor.finish()
    timing = Timing.decode(client.replies[1].frame.meta[8:])
    assert timing.received_ns == timing.parsed_ns == timing.ready_ns == begun_ns
    assert timing.tokenized_ns == 0
    assert timing.batched_ns == begun_ns + MS
    assert timing.input_copied_ns == begun_ns + 4 * MS + 10
    assert timing.run_ns == begun_ns + 6 * MS - 10
    assert timing.output_copied_ns == timing.finished_ns == timing.sent_ns == begun_ns + 6 * MS
    assert (timing.batch_id, timing.batch_rows, timing.cut_reason) == (1, 2, int(CutReason.NO_GAIN))


@pytest.mark.parametrize("nbytes", [JOIN_NBYTES // 4, JOIN_NBYTES])
def test_large_results_are_sent_from_the_slab(make_world: MakeWorld, nbytes: int) -> None:
    """Rows too large for the reply block; joined while they are small together, in parts above."""
    config = fixed_config("wide")
    outputs = {"y": config.outputs["y"], "gat": TensorConfig("u1", [-1, nbytes])}
    world = make_world(configs=[replace(config, outputs=outputs)])
    client = world.client()
    taken: list[int] = []
    client._take = lambda data: taken.append(len(data))  # type: ignore[method-assign]
    client.infer(1)
    client.infer(2)
    world.turn()
    batch = world.executor.sent.popleft()
    lane = world.lane("wide")
    lane.slab.outputs[1][0:2] = 7
    world.executor.sent.append(batch)
    world.executor._execute = lambda lane, slots: None  # type: ignore[method-assign]
    world.executor.finish()
    assert sum(taken) == 2 * (32 + 16 + nbytes)
    client.owed.clear()


# ---------------------------------------------------------------- counting


def test_the_sum_rule_of_the_counters(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.infer(2, payload=b"")
    client.infer(3, timeout_us=1)
    client.infer(4)
    client.infer(5)
    client.cancel(4)
    client.infer(5)
    world.pass_time(MS)
    world.executor.finish(failures=[(1, RAISED, "")])
    snapshot = world.lane("wide").stats.snapshot()
    counted = {
        name: snapshot[name] for name in ("received", "ok", "refused", "expired", "cancelled", "failed")
    }
    assert counted == {"received": 6, "ok": 1, "refused": 2, "expired": 1, "cancelled": 1, "failed": 1}
    assert snapshot["errors"] == {
        "CANCELLED_BY_CLIENT": 1,
        "DEADLINE_IN_QUEUE": 1,
        "INVALID_SIZE": 1,
        "MODEL_RAISED": 1,
        "RID_IN_FLIGHT": 1,
    }
