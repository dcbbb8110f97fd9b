from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from trioserve_tools.bench import _minilm
from trioserve_tools.bench._scenarios import Setting
from trioserve_tools.minilm.throughput import Round
from trioserve_tools.wheels import WheelError


async def test_without_the_model(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise WheelError("no network")

    monkeypatch.setattr(_minilm, "build_repository", fail)
    part = await _minilm.measure_minilm(setting)
    assert [(figure.met, figure.reason) for figure in part.figures] == [(None, "no network")] * 2


async def test_figures_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    async def compare(
        models: Path, texts: list[str], rounds: int, report: Callable[[str], None]
    ) -> list[Round]:
        await trio.lowlevel.checkpoint()
        assert len(texts) == 30
        return [Round(0.98, 1.0, 2e-7), Round(0.9, 1.0, 0.0), Round(0.96, 1.0, 1e-7)][: rounds + 2]

    monkeypatch.setattr(_minilm, "build_repository", lambda *args, **kwargs: None)
    monkeypatch.setattr(_minilm, "some_questions", lambda wheels, count: ["?"] * count)
    monkeypatch.setattr(_minilm, "compare", compare)
    part = await _minilm.measure_minilm(setting)
    assert [figure.met for figure in part.figures] == [True, True]
    assert part.facts["served, texts/s"] == "30 (30 to 30)"
