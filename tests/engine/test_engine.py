"""Finding models, draining, statistics."""

from __future__ import annotations

import json
import os

import pytest
from msgspec.structs import replace

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import fixed_config
from tests.engine.world import MS, World
from trioserve.errors import ModelNotFound, VersionNotFound
from trioserve_protocol import ErrorCode

OK = ErrorCode.OK


def test_the_newest_version_of_a_model(make_world: MakeWorld) -> None:
    config = fixed_config("wide")
    world = make_world(configs=[replace(config, version=version) for version in (3, 7, 5)])
    engine = world.engine
    assert engine.find("wide").config.version == 7
    assert engine.find("wide", 5).config.version == 5
    with pytest.raises(VersionNotFound, match="expected 3, 7, 5; got 4"):
        engine.find("wide", 4)
    with pytest.raises(ModelNotFound, match="expected one of wide; got tall"):
        engine.find("tall")


def test_draining_refuses_what_comes_and_finishes_what_is_here(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.texts(2)
    body = client.begin(3)
    world.engine.drain()
    assert world.engine.draining
    client.infer(4)
    client.texts(5)
    client.many(6, 2)
    assert client.codes((4, 5, 6, 7)) == [ErrorCode.DRAINING] * 4
    assert world.engine.unanswered == 3
    body.send()
    world.settle()
    assert client.codes((1, 2, 3)) == [OK] * 3
    assert world.engine.unanswered == 0


def test_what_is_left_when_the_grace_is_over(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.turn()
    client.infer(2)
    client.texts(3)
    body = client.begin(4, rows=2, many=True)
    world.engine.drain()
    world.engine.abort()
    assert set(client.codes()) == {ErrorCode.CANCELLED_BY_DRAIN}
    assert body.accepted.abandoned
    assert world.engine.unanswered == 0
    world.executor.finish()
    world.check_rest()


def test_statistics_are_json(world: World) -> None:
    client = world.client()
    client.infer(1)
    client.texts(2)
    client.infer(3)
    client.cancel(3)
    world.clock.ns += MS
    statistics = json.loads(json.dumps(world.engine.statistics()))
    assert statistics["uptime_s"] == pytest.approx(0.001)
    assert statistics["sessions"] == 1
    assert statistics["process"]["pid"] == os.getpid()
    for worker in statistics["workers"]:
        assert (worker["starts"], worker["state"], worker["in_flight"], worker["spare_pid"]) == (
            1,
            "ready",
            0,
            0,
        )
    wide, _, text = statistics["models"]
    assert (wide["in_flight"], wide["queued_rows"], wide["slots"]) == (
        1,
        1,
        {"total": 16, "leased": 1, "free_blocks": 3},
    )
    assert wide["permits"] == {"rows": 1, "rows_limit": 16, "rows_high_water": 2}
    assert (text["announced_rows"], text["service"]["unit"]) == (1, "token")
    world.settle()
    assert world.engine.statistics()["queued_nbytes"] == 0
