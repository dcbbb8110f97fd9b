"""A Python model tells its signature from a process of its own, whatever its file does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trioserve.config import ConfigError, Problem, TensorConfig, load_model_config, load_repository

pytestmark = pytest.mark.slow

SCALE = """\
import trioserve

class Scale(trioserve.Model):
    inputs = {"x": trioserve.Tensor("f4", [-1, 128])}
    outputs = {"y": trioserve.Tensor("float32", [-1, 64])}
    max_batch_rows = 48
    threads = 2
    watchdog_s = 5

    def __init__(self, factor=2.0):
        raise RuntimeError("describing a class must not make one")

    def infer(self, x):
        return x[:, :64]
"""


def write(folder: Path, source: str, toml: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "scale.py"
    file.write_text(source)
    if not toml:
        return file
    (folder / "model.toml").write_text(toml)
    return folder


def problem_of(path: Path) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_model_config(path)
    [problem] = caught.value.problems
    return problem


def test_file_alone(tmp_path: Path) -> None:
    [config] = load_repository(write(tmp_path / "models", SCALE).parent)
    assert (config.name, config.backend, config.file, config.class_name) == (
        "scale",
        "python",
        "scale.py",
        "Scale",
    )
    assert config.inputs == {"x": TensorConfig("f4", [-1, 128])}
    assert config.outputs == {"y": TensorConfig("float32", [-1, 64])}
    assert (config.batching.max_rows, config.threads, config.watchdog_s) == (48, 2, 5)
    assert config.directory == str(tmp_path / "models")


def test_toml_wins_over_the_class(tmp_path: Path) -> None:
    tensor = '[inputs.x]\ndtype = "FP32"\ndims = [-1, 128]\n'
    toml = f'backend = "python"\nfile = "scale.py"\nthreads = 1\n{tensor}[batching]\nwindow_ms = 0.5\n'
    config = load_model_config(write(tmp_path / "renamed", SCALE, toml))
    assert (config.name, config.threads) == ("renamed", 1)
    assert (config.batching.max_rows, config.batching.window_ms) == (48, 0.5)
    assert config.outputs["y"].dims == [-1, 64]


def test_toml_that_contradicts_the_class(tmp_path: Path) -> None:
    toml = 'backend = "python"\nfile = "scale.py"\n[inputs.x]\ndtype = "f4"\ndims = [-1, 7]\n'
    problem = problem_of(write(tmp_path / "m", SCALE, toml))
    assert problem.key == "inputs"
    assert problem.expected == "what the class says: x f4 [-1, 128]"
    assert problem.given == "x f4 [-1, 7]"


def test_what_the_class_says_is_checked_like_a_file(tmp_path: Path) -> None:
    problem = problem_of(write(tmp_path, SCALE.replace("max_batch_rows = 48", "max_batch_rows = 0")))
    assert (problem.key, problem.given) == ("batching.max_rows", "0")


@pytest.mark.parametrize(
    "source, words",
    [
        ("import os\nos._exit(3)", "a process that ended with status 3"),
        ("import os\nos.kill(os.getpid(), 9)", "a process that ended with status -9"),
        ("raise SystemExit(4)", "ends the process when it is imported, with status 4"),
        ("x = 1\nundefined", "NameError: name 'undefined' is not defined (line 2)"),
        ("class", "SyntaxError"),
        ("x = 1", "found none"),
        (SCALE.replace("Scale", "A") + SCALE.replace("Scale", "B"), "found A, B"),
        (SCALE.replace("max_batch_rows = 48", "max_batch_rows = object()"), "TypeError"),
        (SCALE.replace("self, x)", "self, y)"), "expected the parameters (self, x), as `inputs` names them"),
    ],
    ids=["exit", "killed", "sys-exit", "raises", "syntax", "no-class", "two-classes", "not-json", "infer"],
)
def test_file_that_is_no_model(tmp_path: Path, source: str, words: str) -> None:
    problem = problem_of(write(tmp_path, source))
    assert problem.file.endswith("scale.py")
    assert problem.expected == "Python source that defines a trioserve.Model"
    assert words in problem.given


def test_file_that_prints_is_a_model(tmp_path: Path) -> None:
    noise = "import os, sys\nprint('hello')\nos.write(1, b'bytes')\nsys.stdout.flush()\n"
    assert load_model_config(write(tmp_path, noise + SCALE)).name == "scale"


def test_script_that_would_serve(tmp_path: Path) -> None:
    guarded = SCALE + "\nif __name__ == '__main__':\n    raise AssertionError\n"
    assert load_model_config(write(tmp_path, guarded)).name == "scale"


def test_class_without_inputs(tmp_path: Path) -> None:
    problem = problem_of(write(tmp_path, SCALE.replace("    inputs =", "    entries =")))
    assert (problem.key, problem.expected, problem.given) == ("inputs", "at least one tensor", "nothing")
    assert "trioserve.Tensor" in problem.hint


def test_class_that_is_not_there(tmp_path: Path) -> None:
    toml = 'backend = "python"\nfile = "scale.py"\nclass = "Skale"\n'
    problem = problem_of(write(tmp_path, SCALE, toml))
    assert problem.key == "class"
    assert "Skale" in problem.given


def test_import_that_takes_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def communicate(*_: object, timeout: float | None = None) -> None:
        raise subprocess.TimeoutExpired("describe", timeout or 0)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    assert problem_of(write(tmp_path, SCALE)).given == "an import of more than 60 s"


@pytest.mark.parametrize(
    "args, given",
    [
        ("size = 3", None),
        ("", "missing a required argument: 'size'"),
        ("siez = 3", "missing a required argument: 'size'"),
        ("size = 3\ncolour = 1", "unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_of_the_constructor(tmp_path: Path, args: str, given: str | None) -> None:
    source = SCALE.replace("factor=2.0", "size, factor=2.0")
    folder = write(tmp_path / "m", source, f'backend = "python"\nfile = "scale.py"\n[args]\n{args}\n')
    if given is None:
        assert load_model_config(folder).args == {"size": 3}
        return
    problem = problem_of(folder)
    assert problem.key == "args"
    assert given in problem.given


def test_file_alone_cannot_give_arguments(tmp_path: Path) -> None:
    problem = problem_of(write(tmp_path, SCALE.replace("factor=2.0", "factor")))
    assert problem.key == "args"
    assert "model.toml" in problem.hint
