"""The Python backend: which class is loaded from which file, and what may come out of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from trioserve.backends import (
    LoadContext,
    LoadError,
    OutputError,
    PythonBackend,
    class_signature,
    create_backend,
    load_class,
    signature_of,
)
from trioserve.config import ModelConfig, TensorConfig
from trioserve.testing import BackendContract
from trioserve_protocol import DType, Signature, TensorSpec

MODELS = Path(__file__).with_name("models.py")
X4 = TensorSpec("x", DType.F32, (-1, 4))
AFFINE = Signature((X4,), (TensorSpec("y", DType.F32, (-1, 4)),), version=1, max_rows=32)


def config(class_name: str, **fields: Any) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend="python",
        file=fields.pop("file", MODELS.name),
        class_name=class_name,
        directory=str(fields.pop("directory", MODELS.parent)),
        **fields,
    )


def context(class_name: str, **fields: Any) -> LoadContext:
    found = config(class_name, **fields)
    return LoadContext(found, class_signature(load_class(found), found))


def loaded(class_name: str, **fields: Any) -> PythonBackend:
    backend = PythonBackend()
    backend.load(context(class_name, **fields))
    return backend


class TestAffine(BackendContract):
    def make_backend(self) -> PythonBackend:
        return PythonBackend()

    def make_context(self) -> LoadContext:
        return context("Affine")


class TestPair(BackendContract):
    def make_backend(self) -> PythonBackend:
        return PythonBackend()

    def make_context(self) -> LoadContext:
        return context("Pair")


def test_arguments_reach_the_constructor() -> None:
    x = np.ones((1, 4), np.float32)
    (y,) = loaded("Affine", args={"factor": 5.0}).infer((x,), (np.empty_like(x),))
    assert y.tolist() == [[6, 6, 6, 6]]


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_several_outputs_come_in_the_order_of_the_signature(form: str) -> None:
    a, b = np.ones((2, 3), np.float32), np.array([1, 2], np.int32)
    total, twice = loaded("Pair", args={"form": form}).infer((a, b), ())
    assert total.tolist() == [4, 5]
    assert twice.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("form", "match"), [("misnamed", r"\['sum', 'thrice'\]; expected \['sum', 'twice'\]"), ("list", "list")]
)
def test_other_returns_are_refused(form: str, match: str) -> None:
    with pytest.raises(OutputError, match=match):
        loaded("Pair", args={"form": form}).infer((np.ones((2, 3)), np.ones(2)), ())


def test_wrong_arguments_are_a_load_error() -> None:
    with pytest.raises(LoadError, match=r"Affine\(colour\): .*'colour'"):
        loaded("Affine", args={"colour": 1})


def test_the_configuration_must_agree_with_the_class() -> None:
    tensors = {"x": TensorConfig("f4", [-1, 4])}
    assert class_signature(load_class(config("Affine")), config("Affine", inputs=tensors)) == AFFINE
    other = {"x": TensorConfig("f4", [-1, 5])}
    with pytest.raises(LoadError, match="inputs differ"):
        class_signature(load_class(config("Affine")), config("Affine", inputs=other))


def test_the_server_must_agree_with_the_class() -> None:
    wrong = Signature((X4,), (TensorSpec("y", DType.F32, (-1, 9)),), max_rows=32)
    with pytest.raises(LoadError, match="the server expects"):
        PythonBackend().load(LoadContext(config("Affine"), wrong))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"class_name": "Absent"}, "'Absent' is not a trioserve.Model"),
        ({"class_name": "np"}, "'np' is not a trioserve.Model"),
        ({"class_name": ""}, "expected one trioserve.Model, found Affine, Pair"),
        ({"class_name": "Affine", "file": "absent.py"}, r"absent\.py: no such file"),
        ({"class_name": "Affine", "sha256": "0" * 64}, "the file is not the one configured"),
    ],
)
def test_what_cannot_be_found_is_said(fields: dict[str, str], match: str) -> None:
    with pytest.raises(LoadError, match=match):
        load_class(config(**fields))


SOURCE = """
import trioserve
from trioserve.backends import end_import, importing_model

class Outer:
    class Inner(trioserve.Model):
        inputs = {"x": trioserve.Tensor("f4", [-1])}
        outputs = {"y": trioserve.Tensor("f4", [-1])}

class Only(trioserve.Model):
    inputs = Outer.Inner.inputs
    outputs = Outer.Inner.outputs
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_the_only_class_needs_no_name(write: Callable[[str, str], Path]) -> None:
    path = write("only_model.py", SOURCE)
    assert load_class(config("", file=path.name, directory=path.parent)).__name__ == "Only"
    assert load_class(config("Outer.Inner", file=path.name, directory=path.parent)).__name__ == "Inner"


def test_a_script_ends_where_it_would_serve(write: Callable[[str, str], Path]) -> None:
    script = SOURCE + (
        "assert importing_model()\n"
        "try:\n    end_import()\nexcept Exception:\n    pass\n"
        "raise RuntimeError('went on')\n"
    )
    path = write("script_model.py", script)
    assert load_class(config("Only", file=path.name, directory=path.parent)).__name__ == "Only"


def test_the_main_part_of_a_script_does_not_run(write: Callable[[str, str], Path]) -> None:
    path = write("main_model.py", SOURCE + "if __name__ == '__main__':\n    raise RuntimeError('ran')\n")
    assert load_class(config("Only", file=path.name, directory=path.parent)).__name__ == "Only"


def test_a_file_in_a_package_may_import_its_siblings(write: Callable[[str, str], Path]) -> None:
    write("shop_pkg/__init__.py", "")
    write("shop_pkg/sizes.py", "N = 3")
    path = write("shop_pkg/model.py", "from .sizes import N\n" + SOURCE + "end_import()\n")
    cls = load_class(config("Only", file=path.name, directory=path.parent))
    assert cls.__module__ == "shop_pkg.model"


def test_a_failing_import_is_not_kept(write: Callable[[str, str], Path]) -> None:
    path = write("failing_model.py", "raise RuntimeError('at import')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="at import"):
            load_class(config("Only", file=path.name, directory=path.parent))


def test_only_python_is_imported(write: Callable[[str, str], Path]) -> None:
    path = write("model.txt", SOURCE)
    with pytest.raises(LoadError, match="not a Python source"):
        load_class(config("Only", file=path.name, directory=path.parent))


def test_a_model_finds_its_files_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.npy").touch()
    (tmp_path / "secret").touch()
    ctx = LoadContext(config("Affine", directory=folder), AFFINE)
    assert ctx.path("weights.npy") == folder / "weights.npy"
    with pytest.raises(LoadError, match="no such file"):
        ctx.path("absent")
    for path in ("../secret", str(tmp_path / "secret")):
        with pytest.raises(LoadError, match="outside of the model's folder"):
            ctx.path(path)
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(LoadError, match="outside of the model's folder"):
        ctx.path("link")


def test_signature_of_needs_both_sides() -> None:
    tensors = {"x": TensorConfig("f4", [-1, 4])}
    with pytest.raises(LoadError, match="at least one input and one output"):
        signature_of(config("Affine", inputs=tensors))
    with pytest.raises(LoadError, match="expected -1 for the rows"):
        signature_of(config("Affine", inputs={"x": TensorConfig("f4", [3])}, outputs=tensors))
    with pytest.raises(LoadError, match="bad signature"):
        signature_of(config("Affine", inputs={"": TensorConfig("f4", [-1])}, outputs=tensors))


def test_an_unknown_backend_is_a_load_error() -> None:
    odd = msgspec.structs.replace(config("Affine"), backend="jax")
    with pytest.raises(LoadError, match=r"unknown backend 'jax'; known are \['onnx', 'python'\]"):
        create_backend(odd)
    assert isinstance(create_backend(config("Affine")), PythonBackend)
