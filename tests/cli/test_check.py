"""`trioserve check` says what is wrong and never shows a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trioserve import cli
from trioserve.cli import _graph, _tokenizer


def check(path: Path, capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    assert cli.main(["check", str(path)]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def keys(output: str) -> list[str]:
    return re.findall(r"^\S+: (\S+)\n  expected", output, re.MULTILINE)


def test_good_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = check(repository, capsys, 0)
    assert f"{repository}/double: ok" in output
    assert "x f4[-1, 4] -> y f4[-1, 4]" in output
    assert output.endswith("\nnothing is wrong\n")


@pytest.mark.parametrize("part", ["double", "double/model.toml"])
def test_single_model(repository: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is wrong" in check(repository / part, capsys, 0)


@pytest.mark.parametrize(
    "before, after, key, words",
    [
        ('file = "model.onnx"', 'fiel = "model.onnx"', "fiel", 'did you mean "file"?'),
        ('file = "model.onnx"', 'file = "mode.onnx"', "file", "beside it: model.onnx"),
        ('dtype = "f4"', 'dtype = "f8"', "inputs.x", "what the graph has: f4 [-1, 4]"),
        ("dims = [-1, 4]", "dims = [-1, 5]", "inputs.x", "what the graph has: f4 [-1, 4]"),
        ("dims = [-1, 4]", "dims = [-1]", "inputs.x", "what the graph has: f4 [-1, 4]"),
        ("[inputs.x]", "[inputs.z]", "inputs.z", "a tensor that the graph has: x"),
        ("[outputs.y]", "[outputs.z]", "outputs.z", "a tensor that the graph has: y"),
        ("[inputs.x]", "[batching]\nwindow_ms = 5\n[inputs.x]", "batching.window_ms", "from 0 to 2"),
        ("[inputs.x]", f'sha256 = "{0:064}"\n[inputs.x]', "sha256", "have changed"),
        ('backend = "onnx"', 'backend = "onnx', None, "TOML in UTF-8"),
    ],
)
def test_one_mistake(
    toml: Path, before: str, after: str, key: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    toml.write_text(toml.read_text().replace(before, after, 1))
    output = check(toml.parent, capsys)
    assert words in output
    assert key is None or keys(output)[0] == key
    assert "Traceback" not in output


def test_file_that_is_no_graph(toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toml.parent / "model.onnx").write_bytes(b"not a graph")
    output = check(toml.parent, capsys)
    assert "a graph that ONNX Runtime can load" in output


def test_graph_is_loaded_only_where_the_runtime_is(
    toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toml.parent / "model.onnx").write_bytes(b"not a graph")
    monkeypatch.setattr(_graph, "can_look", lambda: False)
    assert "onnxruntime is not installed" in check(toml.parent, capsys, 0)


def text_model(toml: Path, tokenizer: bytes) -> None:
    text = toml.read_text().replace("[inputs.x]", "[inputs.text]", 1).replace('"f4"', '"bytes"', 1)
    text = text.replace("dims = [-1, 4]", "dims = [-1]", 1)
    toml.write_text(text + '[tokenizer]\nfile = "tokenizer.json"\n')
    (toml.parent / "tokenizer.json").write_bytes(tokenizer)


def test_text_model_needs_a_graph_of_ids_and_a_tokenizer(
    toml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model(toml, b"{}")
    output = check(toml.parent, capsys)
    assert keys(output) == [
        "batching.layout.input_ids", "batching.layout.attention_mask", "batching.layout", "tokenizer.file",
    ]  # fmt: skip


def test_tokenizer_is_loaded_only_where_the_library_is(
    toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model(toml, b"{}")
    for module in (_graph, _tokenizer):
        monkeypatch.setattr(module, "can_look", lambda: False)
    assert "tokenizers is not installed" in check(toml.parent, capsys, 0)


@pytest.mark.slow
def test_real_text_model(minilm_repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = check(minilm_repository, capsys, 0)
    assert "batches of up to 32 rows or 64 tokens, packed, window 2 ms" in output


def test_clash_of_names(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "double").rename(repository / "a")
    (repository / "b").symlink_to("a")
    for folder in ("a", "b"):
        toml = repository / folder / "model.toml"
        toml.write_text('name = "same"\n' + toml.read_text().removeprefix('name = "same"\n'))
    output = check(repository, capsys)
    assert '"same" version 1, also in' in output
    assert output.endswith("1 problem\n")


def test_empty_and_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "an empty folder" in check(tmp_path, capsys)
    assert "nothing there" in check(tmp_path / "none", capsys)
    (tmp_path / "model").mkdir()
    assert "nothing there" in check(tmp_path, capsys)


def test_server_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_text("port = 7002\n")
    assert f"{file}: ok" in check(file, capsys, 0)
    file.write_text("prot = 7002\n[limits]\nmax_ndim = 0\n")
    output = check(file, capsys)
    assert keys(output) == ["prot", "limits.max_ndim"]
    assert output.endswith("2 problems\n")


def test_files_that_say_who_may_connect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[auth]\ntokens = "tokens"\n')
    assert str(tmp_path / "tokens") in check(file, capsys)
    (tmp_path / "tokens").write_text("web infer hunter2\n")
    assert "line 1: expected the SHA-256" in check(file, capsys)
    file.write_text('[tls]\ncertificate = "tokens"\n')
    assert "tokens" in check(file, capsys)
