"""MiniLM served over TCP: from text, through processes, the results of calling it directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from trioserve.client import Client, connect
from trioserve_tools.demo._corpus import load_questions
from trioserve_tools.minilm import Direct, throughput
from trioserve_tools.server_process import running_server

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@asynccontextmanager
async def served(repository: Path) -> AsyncIterator[Client]:
    with trio.fail_after(60):
        async with running_server(repository) as (url, _), connect(url) as client:
            yield client


@pytest.mark.parametrize(
    "repository, model", [("minilm_repository", "minilm"), ("minilm_padded_repository", "minilm_padded")]
)
async def test_golden_values_and_direct_results(
    request: pytest.FixtureRequest, wheel_cache: Path, repository: str, model: str
) -> None:
    folder: Path = request.getfixturevalue(repository)
    texts = [question.text for question in load_questions(wheel_cache)][::10]
    wanted = Direct(folder / model).embed(texts)
    async with served(folder) as client:
        embeddings = (await client.infer_many(model, SENTENCES)).output
        np.testing.assert_allclose(embeddings[0, :5], [0.0192, 0.12009, 0.1596, 0.06707, 0.05007], atol=5e-6)
        similarity = embeddings @ embeddings.T
        found = (similarity[0, 1], similarity[0, 2], similarity[1, 2])
        np.testing.assert_allclose(found, (0.6660, 0.1046, 0.1411), atol=5e-5)

        with trio.fail_after(30):
            result = await client.infer_many(model, texts)
        result.raise_for_errors()
        np.testing.assert_allclose(result.output, wanted, atol=1e-6)


async def test_texts_of_every_length(minilm_repository: Path) -> None:
    texts = ["", "a", "été 日本 🎈", "word " * 300, "x" * 16_384]
    wanted = Direct(minilm_repository / "minilm").embed(texts)
    async with served(minilm_repository) as client:
        for text, row in zip(texts, wanted, strict=True):
            np.testing.assert_allclose(await client.infer("minilm", text), row, atol=1e-6)
        np.testing.assert_allclose(await client.infer("minilm", texts), wanted, atol=1e-6)


async def test_more_than_the_window_at_once(minilm_repository: Path) -> None:
    async with served(minilm_repository) as client:
        with trio.fail_after(30):
            result = await client.infer_many("minilm", ["how are you?"] * 600)
        result.raise_for_errors()
        assert np.ptp(result.output, axis=0).max() < 1e-6


def test_throughput_is_compared(
    minilm_repository: Path, wheel_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--models", str(minilm_repository), "--wheels", str(wheel_cache)]
    assert throughput.main([*arguments, "--questions", "40", "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("round 1: direct ")
    assert "median ratio of served to direct throughput: " in output
