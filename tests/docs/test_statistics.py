"""The page of the statistics has the names that a server says, and no other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.engine.play_models import fixed_config, text_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.transport._connections import Connections
from trioserve.transport._doorkeeper import Doorkeeper

PAGE = Path(__file__).parents[2] / "docs/reference/statistics.md"
BY_NAME = ("errors", "cut_reasons", "batch_sizes", "closed", "turned_away_for", "let_in", "handshakes")
"""Maps from names that depend on what happened."""


def names_in(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            is_named = name.rpartition(".")[2] in BY_NAME
            yield from names_in(inner, f"{name}.{'*' if is_named else key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner, f"{name}[]")
    else:
        yield name


def said() -> set[str]:
    """All names of a server that has a model of each kind, a shadow, and an error."""
    world = World(configs=[fixed_config("wide", batching={"shadows": ["greedy"]}), text_config()])
    world.lane("wide").service = ServiceModel({1: MS}, {1: MS // 10})
    client = world.client()
    client.infer(1)
    client.infer(2, timeout_us=1)
    world.settle()
    parts = SimpleNamespace(direct_nbytes=0, copied_nbytes=0)
    keeper = SimpleNamespace(_strangers=(), _refused=0, _let_in={"web": 1}, _handshakes={"TLSv1.3": 1})
    connections = SimpleNamespace(
        peers=(),
        _accepted=0,
        _refused=Counter(address=1),
        _census=SimpleNamespace(addresses=1),
        _doorkeeper=SimpleNamespace(statistics=lambda: Doorkeeper.statistics(keeper)),  # type: ignore[arg-type]
        watch=SimpleNamespace(backlog_nbytes=0),
        reader=SimpleNamespace(bodies=parts),
        _endings={"closed": 1},
    )
    statistics = world.engine.statistics() | {"connections": Connections.statistics(connections)}  # type: ignore[arg-type]
    return set(names_in(statistics))


def test_every_name_has_a_line_and_every_line_a_name() -> None:
    written = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(written)) == len(written)
    assert set(written) - {"models[]"} == said()
