"""Models that are replaced or unloaded while clients use them: who serves what from then on."""

from __future__ import annotations

import msgspec
import pytest

from tests.engine.play_models import HANDLES, fixed_config
from tests.engine.play_worker import FakeWorker
from tests.engine.world import MS, World
from trioserve.config import ModelConfig, TensorConfig
from trioserve.engine import Executor, Lane, dismiss, give_up, hand_over, is_over, retire
from trioserve_protocol import ErrorCode

WIDE, NARROW = HANDLES["wide"], HANDLES["narrow"]


class Turnover:
    """A world with two models, of which one is replaced or goes."""

    def __init__(self) -> None:
        self.world = World(configs=(fixed_config("wide"), fixed_config("narrow", slots=8)))
        self.wide, self.narrow = self.world.lane("wide"), self.world.lane("narrow")
        self.client = self.world.client()
        self.old = self.world.executor_stage
        self.new: FakeWorker | None = None

    def switch(self, *wanted: ModelConfig | Lane) -> list[Lane]:
        """As a server does it; returns the lanes of the new worker."""
        engine, lanes = self.world.engine, []
        served = engine.served
        for one in wanted:
            if isinstance(one, ModelConfig):
                self.world._add_model(one)
                lanes.append(engine.lanes[-1])
            else:
                lanes.append(one)
        assert self.old.is_clear
        retire(engine, [lane for lane in served if lane not in lanes])
        stage, _ = hand_over(engine, lanes, [], [self.old])
        if stage is not None:
            self.new = FakeWorker(stage, self.world.clock, fd=13, depth=1, check=self.world.check_batch)
        return lanes


@pytest.fixture
def turnover() -> Turnover:
    return Turnover()


OTHER = msgspec.structs.replace(fixed_config("narrow"), outputs={"y": TensorConfig("i8", [-1, 3])})


def test_a_held_worker_gets_nothing_more(turnover: Turnover) -> None:
    world, client = turnover.world, turnover.client
    client.infer(1)
    world.turn()
    turnover.old.held = True
    client.infer(2)
    world.pass_time(5 * MS)
    assert len(world.executor.sent) == 1
    world.executor.finish()
    world.pass_time(5 * MS)
    assert turnover.old.is_clear
    assert not world.executor.sent
    turnover.old.held = False
    world.settle()
    assert client.replies[2].code is ErrorCode.OK


def test_a_lane_passes_to_the_new_worker_with_its_queue(turnover: Turnover) -> None:
    client = turnover.client
    turnover.old.held = True
    client.infer(1, "narrow")
    [narrow, wide] = turnover.switch(turnover.narrow, turnover.wide)
    turnover.old.held = False
    turnover.world.turn()
    assert not turnover.world.executor.sent
    assert turnover.new is not None
    assert [batch.model for batch in turnover.new.sent] == [0], (
        "by the number that the new worker knows it by"
    )
    turnover.new.finish()
    assert client.replies[1].code is ErrorCode.OK
    assert narrow.door.neighbours == [wide]


def test_what_a_retired_model_has_is_served_by_the_old_worker(turnover: Turnover) -> None:
    client, world = turnover.client, turnover.world
    turnover.old.held = True
    client.infer(1, "narrow")
    client.infer(2, "wide")
    turnover.switch(turnover.wide)
    turnover.old.held = False
    world.turn()
    assert not is_over(turnover.narrow)
    assert [batch.model for batch in world.executor.sent] == [1], (
        "by the number that the old worker knows it by"
    )
    world.executor.finish()
    assert client.replies[1].code is ErrorCode.OK
    assert is_over(turnover.narrow)
    assert turnover.new is not None
    turnover.new.finish()
    assert client.replies[2].code is ErrorCode.OK
    dismiss(world.engine, [turnover.old], [turnover.narrow])
    assert world.engine.lanes == [turnover.wide]
    assert world.engine.executors == [turnover.new.stage]
    assert not hasattr(turnover.narrow, "slab"), "its memory does not wait for a collection"


def test_what_is_not_answered_in_time_is_given_up(turnover: Turnover) -> None:
    client, world = turnover.client, turnover.world
    turnover.old.held = True
    client.infer(1, "narrow")
    turnover.switch(turnover.wide)
    give_up(world.engine, [turnover.narrow], "the model is not served any more")
    assert client.replies[1].code is ErrorCode.UNAVAILABLE
    assert client.replies[1].message == "the model is not served any more"
    assert is_over(turnover.narrow)


def handle_of(turnover: Turnover, handle: int) -> ErrorCode:
    """What a request on a handle comes to."""
    client = turnover.client
    client.infer(99, "narrow", handle=handle)
    if 99 not in client.replies:
        turnover.world.turn()
        assert turnover.new is not None
        turnover.new.finish()
    return client.replies[99].code


def test_a_handle_of_a_model_that_is_gone_is_unbound(turnover: Turnover) -> None:
    turnover.switch(turnover.wide)
    assert handle_of(turnover, NARROW) is ErrorCode.HANDLE_NOT_BOUND
    assert handle_of(turnover, WIDE) is ErrorCode.OK


def test_a_handle_of_another_signature_is_invalid_until_it_is_bound_again(turnover: Turnover) -> None:
    session = turnover.client.session
    [_, again] = turnover.switch(turnover.wide, OTHER)
    assert handle_of(turnover, NARROW) is ErrorCode.SIGNATURE_CHANGED
    assert handle_of(turnover, NARROW) is ErrorCode.SIGNATURE_CHANGED
    session.bind(NARROW, again, None)
    assert not session.changed
    assert session.lanes[NARROW] is again


def test_an_invalid_handle_can_be_unbound(turnover: Turnover) -> None:
    session = turnover.client.session
    turnover.switch(turnover.wide, OTHER)
    assert session.unbind(NARROW)
    assert not session.unbind(NARROW)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_handle_follows_to_the_newest_version_unless_it_was_bound_to_one(
    turnover: Turnover,
    pinned: bool,  # noqa: FBT001
) -> None:
    session = turnover.client.session
    session.bind(NARROW, turnover.narrow, None, pinned=pinned)
    [_, newest] = turnover.switch(turnover.wide, fixed_config("narrow", version=2))
    if pinned:
        assert NARROW not in session.lanes
        assert handle_of(turnover, NARROW) is ErrorCode.HANDLE_NOT_BOUND
    else:
        assert session.lanes[NARROW] is newest
        assert handle_of(turnover, NARROW) is ErrorCode.OK


def test_a_version_beside_the_old_one_leaves_handles_alone(turnover: Turnover) -> None:
    turnover.switch(turnover.wide, turnover.narrow, fixed_config("narrow", version=2))
    assert turnover.client.session.lanes[NARROW] is turnover.narrow
    assert turnover.world.engine.find("narrow").config.version == 2


def test_all_models_may_go(turnover: Turnover) -> None:
    turnover.switch()
    engine = turnover.world.engine
    dismiss(engine, [turnover.old], [turnover.wide, turnover.narrow])
    assert not engine.lanes
    assert not engine.executors
    turnover.world.turn()
    assert handle_of(turnover, WIDE) is ErrorCode.HANDLE_NOT_BOUND


def test_a_worker_without_models_may_die(turnover: Turnover) -> None:
    turnover.switch(turnover.wide, turnover.narrow)
    assert isinstance(turnover.old, Executor)
    turnover.old.lose("it is gone")
    turnover.old.reaped(restarting=True)
    assert turnover.old.is_clear
    assert not turnover.wide.closed_code
