"""What runs models: the `Backend` class, its implementations, and the classes users write models with.

Nothing here imports a backend's library before a model of it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioserve.backends._base import (
    PACKED_INPUTS,
    PADDED_INPUTS,
    Arrays,
    Backend,
    LoadContext,
    LoadError,
    OutputError,
    check_outputs,
)
from trioserve.backends._files import verify_sha256
from trioserve.backends._instance import instance_config
from trioserve.backends._model import Model, Tensor, model_name
from trioserve.backends._onnx import ELEMENT_TYPES, OnnxBackend
from trioserve.backends._python import PythonBackend, load_class
from trioserve.backends._signature import class_signature, signature_of
from trioserve.backends._user_code import end_import, importing_model

if TYPE_CHECKING:
    from trioserve.config import ModelConfig

__all__ = [
    "ELEMENT_TYPES",
    "PACKED_INPUTS",
    "PADDED_INPUTS",
    "Arrays",
    "Backend",
    "LoadContext",
    "LoadError",
    "Model",
    "OnnxBackend",
    "OutputError",
    "PythonBackend",
    "Tensor",
    "check_outputs",
    "class_signature",
    "create_backend",
    "end_import",
    "importing_model",
    "instance_config",
    "load_class",
    "model_name",
    "signature_of",
    "verify_sha256",
]

_BACKENDS: dict[str, type[Backend]] = {"python": PythonBackend, "onnx": OnnxBackend}


def create_backend(config: ModelConfig) -> Backend:
    """A backend for a model, not loaded.

    Raises:
        LoadError: The configuration names no known backend.
    """
    if config.backend not in _BACKENDS:
        raise LoadError(f"{config.name}: unknown backend {config.backend!r}; known are {sorted(_BACKENDS)}")
    return _BACKENDS[config.backend]()
