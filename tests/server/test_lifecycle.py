"""Orders: what each comes to, one after the other, and what becomes of those that cannot be obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.server.test_swap import model
from trioserve.config import ModelConfig
from trioserve.server._lifecycle import MAX_WAITING, Lifecycle, UnknownModel
from trioserve.server._swap import Change, ChangeFailed, Swap, key_of, plan
from trioserve.transport import ModelOrder
from trioserve_protocol import ErrorCode


class PlayedFleet:
    """A fleet whose changes take as long as the test says."""

    def __init__(self, *models: ModelConfig) -> None:
        self.models: Sequence[ModelConfig] = list(models)
        self.fault = ""
        self.seconds = 0.0
        self.log: list[str] = []

    async def change(self, change: Change) -> Swap:
        self.log.append("change")
        await trio.sleep(self.seconds)
        if self.fault:
            raise ChangeFailed("load", self.fault)
        self.models = change.models
        self.log.append("changed")
        return plan(change, [], [""] * len(change.models))

    async def changed(self, configs: Sequence[ModelConfig]) -> set[tuple[str, int]]:
        return {key_of(config) for config in configs if config not in self.models}

    async def finish(self, swap: Swap) -> None:
        del swap
        await trio.sleep(self.seconds)
        self.log.append("finished")


class Order(ModelOrder):
    """Keeps what it is told."""

    told: Any = None

    def answer(self, value: Any) -> None:
        self.told = value

    def refuse(self, code: ErrorCode, message: str) -> None:
        self.told = code, message


class PlayedGroup:
    def settle(self) -> None:
        """Nothing was written."""


def obeying(*models: ModelConfig, repository: str = "") -> tuple[PlayedFleet, Lifecycle]:
    fleet = PlayedFleet(*models)
    return fleet, Lifecycle(fleet, PlayedGroup(), repository)  # type: ignore[arg-type]


ONE, TWO, OTHER = model(version=1), model(version=2), model("other")


@pytest.mark.parametrize(
    ("order", "left", "fresh"),
    [
        (ModelOrder("unload", "m"), [OTHER], set()),
        (ModelOrder("unload", "m", 1), [TWO, OTHER], set()),
        (ModelOrder("reload", "m", 2), [ONE, OTHER, TWO], {("m", 2)}),
        (ModelOrder("reload", "m"), [OTHER, ONE, TWO], {("m", 1), ("m", 2)}),
    ],
    ids=lambda value: str(value) if isinstance(value, ModelOrder) else "",
)
async def test_what_an_order_comes_to(order: ModelOrder, left: list[ModelConfig], fresh: Any) -> None:
    _, lifecycle = obeying(ONE, TWO, OTHER)
    change = await lifecycle.change_for(order)
    assert change is not None
    assert list(change.models) == left
    assert set(change.fresh) == fresh


async def test_what_is_served_need_not_be_loaded() -> None:
    _, lifecycle = obeying(ONE, OTHER)
    assert await lifecycle.change_for(ModelOrder("load", "m")) is None


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (ModelOrder("unload", "n"), ErrorCode.MODEL_NOT_FOUND),
        (ModelOrder("unload", "m", 7), ErrorCode.VERSION_NOT_FOUND),
        (ModelOrder("reload", "n"), ErrorCode.MODEL_NOT_FOUND),
        (ModelOrder("load", "m", 7), ErrorCode.VERSION_NOT_FOUND),
        (ModelOrder("unload", ""), ErrorCode.MODEL_NOT_FOUND),
    ],
    ids=lambda value: str(value) if isinstance(value, ModelOrder) else "",
)
async def test_what_there_is_not_cannot_be_changed(order: ModelOrder, code: ErrorCode) -> None:
    _, lifecycle = obeying(ONE)
    with pytest.raises(UnknownModel) as caught:
        await lifecycle.change_for(order)
    assert caught.value.code is code


def told(order: Order) -> Any:
    """What it has been told by now."""
    return order.told


async def test_one_order_is_finished_before_the_next(autojump_clock: object, nursery: trio.Nursery) -> None:
    fleet, lifecycle = obeying(ONE)
    fleet.seconds = 1.0
    orders = [Order("reload", "m"), Order("reload", "m")]
    for order in orders:
        lifecycle.submit(order)
    nursery.start_soon(lifecycle.run)
    await trio.sleep(1.5)
    assert orders[0].told["loaded"] == [{"name": "m", "version": 1}], (
        "answered before its old worker has ended"
    )
    assert orders[1].told is None
    await trio.sleep(3)
    assert told(orders[1])["changed"]
    assert fleet.log == ["change", "changed", "finished"] * 2


async def test_a_failed_change_says_where_and_why(autojump_clock: object, nursery: trio.Nursery) -> None:
    fleet, lifecycle = obeying(ONE)
    fleet.fault = "m: ValueError: no weights"
    nursery.start_soon(lifecycle.run)
    order = Order("reload", "m", 1)
    lifecycle.submit(order)
    await trio.sleep(1)
    expected = "reload of m version 1 failed, nothing has changed: load: m: ValueError: no weights"
    assert order.told == (ErrorCode.ABORTED, expected)


async def test_a_repository_that_is_not_usable_changes_nothing(tmp_path: Path, nursery: trio.Nursery) -> None:
    fleet, lifecycle = obeying(ONE, repository=str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.toml").write_text("backend = ")
    nursery.start_soon(lifecycle.run)
    order = Order("reload", "m")
    lifecycle.submit(order)
    with trio.fail_after(5):  # noqa: ASYNC912  as the loop's own note says
        while order.told is None:  # noqa: ASYNC110  a thread reads the file
            await trio.sleep(0.001)
    code, message = order.told
    assert code is ErrorCode.ABORTED
    assert "configuration: " in message
    assert not fleet.log


async def test_only_so_many_orders_wait(autojump_clock: object) -> None:
    _, lifecycle = obeying(ONE)
    orders = [Order("reload", "m") for _ in range(MAX_WAITING + 1)]
    for order in orders:
        lifecycle.submit(order)
    assert [order.told is None for order in orders] == [True] * MAX_WAITING + [False]
    assert orders[-1].told[0] is ErrorCode.RESOURCE_EXHAUSTED


async def test_a_server_that_stops_refuses_what_waits(autojump_clock: object) -> None:
    fleet, lifecycle = obeying(ONE)
    fleet.seconds = 10
    orders = [Order("reload", "m") for _ in range(3)]
    with trio.move_on_after(1):  # noqa: ASYNC912  `run` waits for ever
        for order in orders[:2]:
            lifecycle.submit(order)
        await lifecycle.run()
    lifecycle.submit(orders[2])
    assert [order.told[0] for order in orders] == [ErrorCode.DRAINING] * 3
    assert "changed" not in fleet.log
