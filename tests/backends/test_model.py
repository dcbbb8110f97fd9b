"""Model and Tensor: what a user writes, and what is recorded of it."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from trioserve import Model, Tensor
from trioserve.backends import model_name
from trioserve.backends._model import class_fault, constructor_arguments
from trioserve_protocol import DType, TensorSpec


def test_a_tensor_keeps_what_it_was_given() -> None:
    tensor = Tensor("f4", [-1, 128])
    assert tensor.dims == (-1, 128)
    assert tensor.spec("x") == TensorSpec("x", DType.F32, (-1, 128))
    assert tensor == Tensor("f4", (-1, 128))


@pytest.mark.parametrize("dims", [[], [4], [2, -1], [-1, 0], [-1, -1], [-1, 2.0], [-1, True]])
def test_a_tensor_refuses_other_shapes(dims: list[Any]) -> None:
    with pytest.raises(ValueError, match="expected -1 for the rows"):
        Tensor("f4", dims)


def test_a_tensor_refuses_unknown_datatypes() -> None:
    with pytest.raises(ValueError, match="f128"):
        Tensor("f128", [-1])


class Plain(Model):
    pass


class TextEmbed2D(Model):
    def __init__(self, path: str, scale: float = 1.0, *, options: dict[str, Any] | None = None) -> None:
        pass


class Named(Model):
    name = "other"


class Loose(Model):
    def __init__(self, *layers: int, **options: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("cls", "name"), [(Plain, "plain"), (TextEmbed2D, "text_embed2_d"), (Named, "other")]
)
def test_a_model_is_called_by_its_class(cls: type[Model], name: str) -> None:
    assert model_name(cls) == name


def test_arguments_are_recorded_by_name() -> None:
    assert constructor_arguments(Plain()) == {}
    assert constructor_arguments(TextEmbed2D("a", options={"b": [1, None, True]})) == {
        "path": "a",
        "options": {"b": [1, None, True]},
    }
    assert constructor_arguments(Loose(depth=3)) == {"depth": 3}


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (TextEmbed2D(b"a"), "'path' is a bytes"),  # type: ignore[arg-type]
        (TextEmbed2D("a", options={"b": [1, (2,)]}), r"\"options\['b'\]\[1\]\" is a tuple"),
        (TextEmbed2D("a", options={1: 2}), "'options' has the key 1"),  # type: ignore[dict-item]
        (Loose(1, 2), "'layers' has no name"),
    ],
)
def test_arguments_must_be_json(model: Model, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        constructor_arguments(model)


def test_infer_is_to_be_written() -> None:
    with pytest.raises(NotImplementedError, match=r"Plain\.infer"):
        Plain().infer(x=1)


def test_a_model_without_arguments_takes_none() -> None:
    with pytest.raises(TypeError):
        Plain(1)  # type: ignore[call-arg]


class Sound(Model):
    inputs: ClassVar[Mapping[str, Tensor]] = {"a": Tensor("f4", [-1]), "b": Tensor("f4", [-1])}
    outputs: ClassVar[Mapping[str, Tensor]] = {"y": Tensor("f4", [-1])}

    def infer(self, a: Any, b: Any) -> Any:
        return a + b


class NoTensor(Sound):
    outputs: ClassVar[Mapping[str, Any]] = {"y": ("f4", [-1])}


class NoInfer(Model):
    inputs = Sound.inputs


class OtherNames(Sound):
    def infer(self, a: Any, c: Any) -> Any:
        return a + c


class Awaiting(Sound):
    async def infer(self, a: Any, b: Any) -> Any:
        return a + b


class NoContext(Sound):
    def load(self) -> None:  # type: ignore[override]
        pass


class Text(Sound):
    inputs: ClassVar[Mapping[str, Tensor]] = {"text": Tensor("bytes", [-1])}

    def infer(self, input_ids: Any, attention_mask: Any) -> Any:
        return input_ids


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (NoTensor, r"NoTensor\.outputs\['y'\]: expected a trioserve.Tensor, got tuple"),
        (NoInfer, "NoInfer: expected a method `infer`"),
        (OtherNames, r"OtherNames\.infer: expected the parameters \(self, a, b\), .*'c'"),
        (Awaiting, r"Awaiting\.infer: expected a plain function, got an async one"),
        (NoContext, r"NoContext\.load: expected the parameters \(self, ctx\)"),
    ],
)
def test_what_is_wrong_with_a_class_is_said(cls: type[Model], words: str) -> None:
    assert re.match(words, class_fault(cls))


@pytest.mark.parametrize("cls", [Sound, Text])
def test_nothing_is_wrong_with_a_sound_class(cls: type[Model]) -> None:
    assert class_fault(cls) == ""
