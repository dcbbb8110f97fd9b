"""Workers that do not give back what they have: ended in time, never before, and never watched while idle."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config, text_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.engine import _stage
from trioserve.engine._watchdog import STALL_NS, UNKNOWN_NS, Watchdog, limit_ns
from trioserve.request import NEVER_NS
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK
LOST = ErrorCode.WORKER_LOST
S = 1_000 * MS
PATIENT_US = 100_000_000


@pytest.fixture
def known(world: World) -> World:
    """A world whose model "wide" takes 2 ms a batch, and whose model "narrow" takes 300 ms."""
    world.lane("wide").service = ServiceModel({1: 2 * MS, 4: 2 * MS})
    world.lane("narrow").service = ServiceModel({1: 300 * MS, 4: 300 * MS})
    return world


@pytest.mark.parametrize(
    ("least_s", "expected_ms", "seconds"),
    [(1, 2, 1), (1, 300, 3), (5, 300, 5), (0.05, 2, 0.05), (1, 0, 60), (90, 0, 90)],
)
def test_the_limit(least_s: float, expected_ms: int, seconds: float) -> None:
    assert limit_ns(int(least_s * S), expected_ms * MS) == max(least_s, seconds) * S


def test_a_worker_that_hangs_is_killed_and_its_batch_answered(known: World) -> None:
    client = known.client()
    client.infer(1, timeout_us=PATIENT_US)
    known.turn()
    client.infer(2, "narrow", timeout_us=PATIENT_US)
    known.turn()
    known.pass_time(S - MS)
    assert client.codes() == [None, None]
    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(_stage, "log", structlog.get_logger())
        known.pass_time(MS)
    assert client.codes() == [LOST, None]
    assert known.executor.link.killed_because == "it had a batch of wide for 1.0 s"
    [entry] = logs
    assert entry["event"] == "worker_hung"
    assert (entry["model"], entry["rows"], entry["for_s"], entry["limit_s"]) == ("wide", 1, 1.0, 1.0)
    assert known.lane("wide").slots.leased == 1, "it may still write to them"
    known.executor_stage.reaped(restarting=True)
    assert known.lane("wide").door.quarantine.snapshot()["suspects"] == 1
    known.executor.start()
    known.settle()
    assert client.code(2) == OK


def test_a_model_that_is_slow_has_ten_times_what_it_takes(known: World) -> None:
    client = known.client()
    client.infer(1, "narrow", timeout_us=PATIENT_US)
    known.turn()
    known.pass_time(3 * S - MS)
    assert client.codes() == [None]
    known.pass_time(MS)
    assert client.codes() == [LOST]


def test_the_time_of_a_batch_begins_when_the_one_before_it_ends(make_world: MakeWorld) -> None:
    world = make_world(depth=2)
    client = world.client()
    client.run(range(1, 9), timeouts_us=PATIENT_US)
    world.turn()
    world.lane("wide").service = ServiceModel({1: 2 * MS, 4: 2 * MS})
    assert world.executor_stage.in_flight == 2
    world.pass_time(900 * MS)
    world.executor.finish()
    world.pass_time(S - MS)
    assert client.codes() == [OK] * 4 + [None] * 4
    world.pass_time(MS)
    assert client.codes() == [OK] * 4 + [LOST] * 4


def test_an_idle_worker_is_not_watched(known: World) -> None:
    assert known.engine.next_event_ns() == NEVER_NS
    client = known.client()
    for rid in range(1, 50):
        client.infer(rid)
        known.turn()
        known.executor.finish()
        known.pass_time(50 * MS)
    assert client.codes() == [OK] * 49
    known.pass_time(5 * S)
    assert known.engine.next_event_ns() == NEVER_NS
    assert known.executor.link.killed_because == ""


def test_a_result_that_is_there_already_is_taken(known: World) -> None:
    client = known.client()
    client.infer(1, timeout_us=PATIENT_US)
    known.turn()
    known.executor.finish(collect=False)
    known.clock.ns += 2 * S
    known.engine.decide(known.clock.ns)
    assert client.codes() == [OK]


def test_a_server_that_stood_still_itself_blames_nobody(known: World) -> None:
    client = known.client()
    client.infer(1, timeout_us=PATIENT_US)
    known.turn()
    known.clock.ns += 20 * S
    known.turn()
    assert client.codes() == [None]
    known.executor.finish()
    assert client.codes() == [OK]


def test_a_little_late_is_late() -> None:
    dog = Watchdog(100)
    dog.begins(0)
    assert dog.overdue_ns(100, 100 + STALL_NS) == 100 + STALL_NS
    dog.begins(0)
    assert dog.overdue_ns(100, 101 + STALL_NS) == 0
    assert dog.look_ns == 201 + STALL_NS


def test_a_model_of_which_nothing_is_known_is_waited_for(world: World) -> None:
    client = world.client()
    client.infer(1, timeout_us=PATIENT_US)
    world.turn()
    world.pass_time(UNKNOWN_NS - MS)
    assert client.codes() == [None]
    world.pass_time(MS)
    assert client.codes() == [LOST]


def test_a_model_may_have_a_limit_of_its_own(make_world: MakeWorld) -> None:
    world = make_world(
        configs=[fixed_config("wide", watchdog_s=0.02), fixed_config("narrow", watchdog_s=7), text_config()]
    )
    for name in ("wide", "narrow"):
        world.lane(name).service = ServiceModel({1: MS, 4: MS})
    client = world.client()
    client.infer(1, "narrow", timeout_us=PATIENT_US)
    world.turn()
    world.pass_time(7 * S - MS)
    assert client.codes() == [None]
    world.pass_time(MS)
    assert client.codes() == [LOST]
    world.executor_stage.reaped(restarting=True)
    world.executor.start()
    client.infer(2, timeout_us=PATIENT_US)
    world.turn()
    world.pass_time(20 * MS)
    assert client.code(2) == LOST


def test_a_tokenizer_that_hangs(world: World) -> None:
    client = world.client()
    client.texts(1, timeout_us=PATIENT_US)
    world.turn()
    world.pass_time(S - MS)
    assert client.codes() == [None]
    world.pass_time(MS)
    assert client.codes() == [LOST]
    assert world.tokenizer.link.killed_because == "it had a batch of text for 1.0 s"
    assert world.executor.link.killed_because == ""
    world.tokenizer_stage.reaped(restarting=True)
    world.tokenizer.start()
