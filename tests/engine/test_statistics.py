"""What statistics say of a service-time model."""

from __future__ import annotations

import json

from tests.engine.world import World
from trioserve.batching import ServiceModel
from trioserve.engine._statistics import service_statistics


def test_a_model_that_was_warmed_up() -> None:
    model = ServiceModel({1: 1000, 2: 1100, 4: 1300}, {1: 10, 2: 11, 4: 13}, max_units=8)
    found = service_statistics(model, "row")
    assert (found["one_units"], found["one_ns"]) == (1, 1000)
    assert (found["full_units"], found["full_ns"]) == (8, 1700)
    assert (found["fixed_ns"], found["per_unit_ns"]) == (900, 100)
    assert found["sizes"][1] == {"units": 2, "mean_ns": 1100, "deviation_ns": 11, "quantile_ns": 1133}
    json.dumps(found)


def test_a_model_of_which_nothing_is_known() -> None:
    found = service_statistics(ServiceModel({}), "token")
    assert (found["one_units"], found["one_ns"], found["full_ns"], found["sizes"]) == (0, 0, 0, [])


def test_it_is_part_of_the_statistics(world: World) -> None:
    client = world.client()
    client.infer(1)
    world.settle()
    service = world.engine.statistics()["models"][0]["service"]
    assert service["unit"] == "row"
    assert [size["units"] for size in service["sizes"]] == [1]
