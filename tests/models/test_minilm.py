"""The encoder that is built from the wheel gives the published results, in both layouts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from trioserve.config import load_repository
from trioserve_tools.minilm import Direct, build_repository, packed_feed, padded_feed
from trioserve_tools.minilm import __main__ as program
from trioserve_tools.minilm._weights import TOKENIZER_SHA256, WEIGHTS_SHA256, load_files, tensors
from trioserve_tools.wheels import WheelError

pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.slow

QUICK_START = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
QUICK_START_IDS = [101, 1996, 4633, 2003, 8403, 2651, 1012, 102]


@pytest.fixture(scope="module")
def padded(minilm_padded_repository: Path) -> Direct:
    return Direct(minilm_padded_repository / "minilm_padded")


@pytest.fixture(scope="module")
def packed(minilm_repository: Path) -> Direct:
    return Direct(minilm_repository / "minilm")


@pytest.fixture(scope="module", params=["padded", "packed"])
def direct(request: pytest.FixtureRequest) -> Direct:
    chosen: Direct = request.getfixturevalue(request.param)
    return chosen


def test_published_ids_embedding_and_similarities(direct: Direct) -> None:
    rows = direct.tokenize(QUICK_START)
    assert rows[0] == QUICK_START_IDS
    embeddings = direct.run(rows)
    np.testing.assert_allclose(embeddings[0, :5], [0.0192, 0.12009, 0.1596, 0.06707, 0.05007], atol=5e-6)
    similarity = embeddings @ embeddings.T
    found = (similarity[0, 1], similarity[0, 2], similarity[1, 2])
    np.testing.assert_allclose(found, (0.6660, 0.1046, 0.1411), atol=5e-5)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-6)


def test_company_changes_a_row_by_rounding_only(direct: Direct) -> None:
    rng = np.random.default_rng(7)
    rows = [rng.integers(1000, 30_000, size).tolist() for size in (1, 2, 5, 8, 13, 40)]
    together = direct.run(rows)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(together[index], direct.run([row])[0], atol=1e-6)


def test_both_layouts_agree(padded: Direct, packed: Direct) -> None:
    rng = np.random.default_rng(8)
    rows = [rng.integers(1000, 30_000, size).tolist() for size in (3, 9, 4, 17, 4, 4, 30)]
    np.testing.assert_allclose(padded.run(rows), packed.run(rows), atol=1e-6)


def test_a_row_of_padding_alone_harms_nobody(padded: Direct) -> None:
    result = padded.run([QUICK_START_IDS, []])
    np.testing.assert_allclose(result[0], padded.run([QUICK_START_IDS])[0], atol=1e-6)
    assert not result[1].any()


def test_empty_text_is_two_tokens(direct: Direct) -> None:
    assert direct.tokenize([""]) == [[101, 102]]
    assert np.linalg.norm(direct.run([[101, 102]])[0]) == pytest.approx(1, abs=1e-6)


def test_graph_is_portable(minilm_repository: Path) -> None:
    model = onnx.load(str(minilm_repository / "minilm" / "model.onnx"))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert {node.domain for node in model.graph.node} == {""}


def test_repository_is_valid_and_pinned(minilm_repository: Path, minilm_padded_repository: Path) -> None:
    (packed_config,) = load_repository(minilm_repository)
    (padded_config,) = load_repository(minilm_padded_repository)
    assert packed_config.batching.layout == "packed"
    assert padded_config.batching.layout == "padded"
    for config in (packed_config, padded_config):
        assert config.sha256 == hashlib.sha256(config.file_path.read_bytes()).hexdigest()
        assert config.tokenizer is not None
        assert config.tokenizer.sha256 == TOKENIZER_SHA256


def test_a_built_model_is_left_alone(minilm_repository: Path, tmp_path: Path) -> None:
    before = (minilm_repository / "minilm" / "model.onnx").stat()
    assert build_repository(minilm_repository, wheels=tmp_path / "none") == minilm_repository
    assert (minilm_repository / "minilm" / "model.onnx").stat() == before


def test_tensors_of_the_wheel(wheel_cache: Path) -> None:
    weights, _ = load_files(wheel_cache)
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS_SHA256
    by_name = tensors(weights)
    assert by_name["embeddings.word_embeddings.weight"].shape == (30_522, 384)
    assert "embeddings.position_ids" not in by_name  # i64, and the graph makes its own


def test_program_says_why_there_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(wheels: Path) -> tuple[bytes, bytes]:
        raise WheelError(f"nothing in {wheels}")

    monkeypatch.setattr("trioserve_tools.minilm._build.load_files", unavailable)
    arguments = ["--directory", str(tmp_path / "models"), "--wheels", str(tmp_path / "wheels")]
    assert program.main(arguments) == 1
    assert "nothing in" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_program_prints_where_the_model_is(
    minilm_repository: Path, wheel_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--directory", str(minilm_repository), "--wheels", str(wheel_cache)]) == 0
    assert capsys.readouterr().out.strip() == str(minilm_repository / "minilm")


def test_direct_batches_keep_to_rows_and_tokens(packed: Direct) -> None:
    rows = [[1] * size for size in (30, 30, 5, 100, 1, *[1] * 40)]
    batches = packed.batches(rows)
    assert [[len(row) for row in batch] for batch in batches[:3]] == [[30, 30], [5], [100]]
    assert [len(batch) for batch in batches[3:]] == [32, 9]
    assert [row for batch in batches for row in batch] == rows


def test_direct_embeds_texts_in_their_order(direct: Direct) -> None:
    together = direct.embed(QUICK_START * 8)
    assert together.shape == (24, 384)
    np.testing.assert_allclose(together, np.tile(direct.embed(QUICK_START), (8, 1)), atol=1e-6)


def test_feeds() -> None:
    padded_inputs = padded_feed([[5, 6], [7]])
    assert padded_inputs["input_ids"].tolist() == [[5, 6], [7, 0]]
    assert padded_inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    packed_inputs = packed_feed([[5, 6], [7]])
    assert {name: column.tolist() for name, column in packed_inputs.items()} == {
        "input_ids": [5, 6, 7],
        "position_ids": [0, 1, 0],
        "segment_ids": [0, 0, 1],
    }
