"""From a configuration or a class to the signature that clients see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.backends._base import LoadError
from trioserve.backends._model import Model, Tensor
from trioserve_protocol import DType, LocalProtocolError, Signature, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trioserve.config import ModelConfig, TensorConfig


def signature_of(config: ModelConfig) -> Signature:
    """The signature that a configuration says.

    Raises:
        LoadError: A tensor has an unknown datatype or no good shape, or there are no inputs or outputs.
    """
    return _signature(config, _specs(config, config.inputs), _specs(config, config.outputs))


def class_signature(cls: type[Model], config: ModelConfig) -> Signature:
    """The signature that a model's class says; what the configuration says besides must agree.

    Raises:
        LoadError: They differ, or neither says anything.
    """
    inputs = _agreed(config, "inputs", cls.inputs, _specs(config, config.inputs))
    outputs = _agreed(config, "outputs", cls.outputs, _specs(config, config.outputs))
    return _signature(config, inputs, outputs)


def _signature(
    config: ModelConfig, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Signature:
    if not inputs or not outputs:
        raise LoadError(f"{config.name}: a model has at least one input and one output")
    if config.tokenizer is not None and [spec.dtype for spec in inputs] != [DType.BYTES]:
        raise LoadError(f"{config.name}: a model with a tokenizer has one BYTES input")
    try:
        return Signature(inputs, outputs, version=config.version, max_rows=config.batching.max_rows)
    except LocalProtocolError as error:
        raise LoadError(f"{config.name}: {error}") from error


def _specs(config: ModelConfig, tensors: Mapping[str, TensorConfig]) -> tuple[TensorSpec, ...]:
    try:
        return tuple(Tensor(tensor.dtype, tensor.dims).spec(name) for name, tensor in tensors.items())
    except ValueError as error:
        raise LoadError(f"{config.name}: {error}") from error


def _agreed(
    config: ModelConfig, side: str, declared: Mapping[str, Tensor], configured: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    specs = tuple(tensor.spec(name) for name, tensor in declared.items())
    if specs and configured and specs != configured:
        raise LoadError(
            f"{config.name}: {side} differ, the class says {specs}, the configuration {configured}"
        )
    return specs or configured
