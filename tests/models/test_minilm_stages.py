"""MiniLM from text to embedding through the stages that serve it, without their processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from trioserve.backends import signature_of
from trioserve.config import ModelConfig, load_model_config
from trioserve.execution._descriptors import StageBatch
from trioserve.execution._load import Loaded, load_model
from trioserve.memory import Arena, Slab, plan_slab

pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.slow

SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")


class Stages:
    """A tokenizer and an executor of one model over one slab."""

    def __init__(self, config: ModelConfig) -> None:
        layout = plan_slab(signature_of(config), 64, max_tokens=256, text_nbytes=1 << 16)
        self.arena = Arena.create(layout.total_nbytes, "stages")
        self.slab = Slab(self.arena, layout)
        self.tokenizer = self._loaded(load_model("tokenizer", config, self.arena, layout))
        self.executor = self._loaded(load_model("executor", config, self.arena, layout))

    def _loaded(self, loaded: Loaded) -> Loaded:
        assert loaded.ready.error == ""
        return loaded

    def tokenize(self, texts: list[str], first: int) -> npt.NDArray[np.uint32]:
        encoded = [text.encode() for text in texts]
        lengths = np.array([len(text) for text in encoded], np.uint32)
        offsets = (np.cumsum(lengths) - lengths).astype(np.uint32)
        blob = b"".join(encoded)
        self.slab.text[: len(blob)] = blob
        result = self.tokenizer.runner.run(StageBatch(0, 1, ((first, len(texts)),), lengths, offsets))
        assert (result.code, result.failures) == (0, ())
        assert result.lengths is not None
        return result.lengths

    def embed(
        self, ranges: tuple[tuple[int, int], ...], lengths: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.float32]:
        result = self.executor.runner.run(StageBatch(0, 2, ranges, lengths))
        assert (result.code, result.message, result.failures) == (0, "", ())
        rows = [np.arange(first, first + count) for first, count in ranges]
        return np.array(self.slab.outputs[0][np.concatenate(rows)])


@pytest.fixture(scope="module", params=["minilm_repository", "minilm_padded_repository"])
def stages(request: pytest.FixtureRequest) -> Stages:
    repository: Path = request.getfixturevalue(request.param)
    [folder] = [entry for entry in repository.iterdir() if not entry.name.startswith(".")]
    return Stages(load_model_config(folder))


def test_published_values_from_text(stages: Stages) -> None:
    lengths = stages.tokenize(list(SENTENCES), 0)
    assert stages.slab.tokens[0, : lengths[0]].tolist() == [101, 1996, 4633, 2003, 8403, 2651, 1012, 102]
    embeddings = stages.embed(((0, 3),), lengths)
    np.testing.assert_allclose(embeddings[0, :5], [0.0192, 0.12009, 0.1596, 0.06707, 0.05007], atol=5e-6)
    similarity = embeddings @ embeddings.T
    found = (similarity[0, 1], similarity[0, 2], similarity[1, 2])
    np.testing.assert_allclose(found, (0.6660, 0.1046, 0.1411), atol=5e-5)


def test_rows_are_independent_of_ranges_and_order(stages: Stages) -> None:
    texts = ["", "short", "a somewhat longer question than the others?", "été", "word " * 40]
    lengths = stages.tokenize(texts, 10)
    alone = np.concatenate(
        [stages.embed(((10 + row, 1),), lengths[row : row + 1]) for row in range(len(texts))]
    )
    order = [4, 0, 1, 3]
    together = stages.embed(((14, 1), (10, 2), (13, 1)), lengths[order])
    np.testing.assert_allclose(together, alone[order], atol=1e-6)


def test_long_text_is_cut_at_256_tokens(stages: Stages) -> None:
    lengths = stages.tokenize(["word " * 1000], 20)
    assert lengths.tolist() == [256]
    assert np.linalg.norm(stages.embed(((20, 1),), lengths)[0]) == pytest.approx(1, abs=1e-6)
