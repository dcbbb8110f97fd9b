"""From an instance in the user's program to a configuration that a worker loads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trioserve
from trioserve.backends import class_signature, instance_config, load_class
from trioserve.config import ConfigError

X = {"x": trioserve.Tensor("f4", [-1, 4])}


class Here(trioserve.Model):
    inputs = X
    outputs = X
    max_batch_rows = 7
    slots = 50

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def infer(self, x: np.ndarray) -> np.ndarray:
        return x


class Mute(trioserve.Model):
    inputs = X


def test_a_configuration_leads_back_to_the_class() -> None:
    config = instance_config(Here(3.0))
    assert config.name == "here"
    assert config.file_path == Path(__file__).resolve()
    assert config.args == {"factor": 3.0}
    assert config.batching.max_rows == 7
    assert config.slots == 50
    cls = load_class(config)
    assert cls.__name__ == "Here"
    assert class_signature(cls, config).max_rows == 7


def test_what_a_worker_could_not_make_again_is_refused() -> None:
    class Local(Here):
        pass

    with pytest.raises(TypeError, match="move it to the top of its file"):
        instance_config(Local(1.0))
    with pytest.raises(TypeError, match="'factor' is a bytes"):
        instance_config(Here(b""))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="says its `inputs` and `outputs`"):
        instance_config(Mute())


class Greedy(Here):
    max_batch_rows = 100_000
    window_ms = 50


class Misnamed(Here):
    name = "../here"


@pytest.mark.parametrize(
    "model, keys",
    [(Greedy(1.0), {"batching.max_rows", "batching.window_ms"}), (Misnamed(1.0), {"name"})],
)
def test_what_a_class_says_is_checked_as_a_file_is(model: trioserve.Model, keys: set[str]) -> None:
    with pytest.raises(ConfigError, match="class") as caught:
        instance_config(model)
    assert {problem.key for problem in caught.value.problems} == keys


@pytest.mark.slow
def test_an_interactive_class_is_refused() -> None:
    code = (
        "import trioserve; from trioserve.backends import instance_config\n"
        "class M(trioserve.Model): inputs = outputs = {'x': trioserve.Tensor('f4', [-1])}\n"
        "try: instance_config(M())\nexcept TypeError as e: print(e)"
    )
    path = ":".join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert "defined in no file" in done.stdout, done.stderr
