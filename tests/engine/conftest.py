"""Every world that a test makes must be at rest when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Makes worlds; for the arguments see `World`."""
    worlds: list[World] = []

    def make(**arguments: Any) -> World:
        worlds.append(World(**arguments))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with two models of fixed shape and one of text."""
    return make_world()


@pytest.fixture
def crammed(make_world: MakeWorld) -> World:
    """A world whose text region has room for two texts and a half."""
    world = make_world()
    region = world.text.texts
    region._free.clear()
    region._block_nbytes = 64  # type: ignore[misc]
    return world
