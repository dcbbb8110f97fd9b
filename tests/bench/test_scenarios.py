from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import trio

from trioserve_tools.bench import _scenarios
from trioserve_tools.bench._measure import Sample
from trioserve_tools.bench._scenarios import SCENARIOS, Setting

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, sample: Callable[..., Sample]) -> list[str]:
    """Replaces measuring; keeps the subjects' names."""
    names: list[str] = []
    per_s = {"trioserve": 900.0, "mosec": 300.0, "echo": 1800.0, "reflector": 4500.0}

    async def fake(subjects: dict[str, object], *args: object, **kwargs: object) -> dict[str, list[Sample]]:
        await trio.lowlevel.checkpoint()
        names.extend(subjects)
        return {name: [sample(per_s[name], p50_us=90_000 / per_s[name])] * 2 for name in subjects}

    monkeypatch.setattr(_scenarios, "measure", fake)
    return names


async def test_figures_of_the_hardest_load(measured: list[str], setting: Setting) -> None:
    part = await BY_NAME["w1-64x1"].run(dataclasses.replace(setting, peer_python="python"))
    assert measured == ["trioserve", "mosec", "echo"]
    assert part.title == "w1, 64 connections x 1 outstanding"
    found = {figure.title: (figure.spread and figure.spread.median, figure.met) for figure in part.figures}
    assert found == {
        "w1-64x1: throughput over mosec's": (3.0, True),
        "w1-64x1: throughput over echo's": (0.5, True),
        "w1-64x1: server CPU per request": (12.0, True),
    }


async def test_without_the_peer(measured: list[str], setting: Setting) -> None:
    part = await BY_NAME["w3-32x1"].run(setting)
    assert measured == ["trioserve"]
    (figure,) = part.figures
    assert (figure.met, figure.reason) == (None, "mosec is not installed")


async def test_latency_is_compared_by_its_difference(measured: list[str], setting: Setting) -> None:
    part = await BY_NAME["w1-1x1"].run(setting)
    (figure,) = part.figures
    assert figure.spread is not None
    assert figure.spread.median == 50.0
    assert figure.met
