"""Configuration: frozen structs, where their values come from, and what is wrong with them in words."""

from trioserve.config._model import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.config._server import ServerConfig, ServerLimits, WorkerConfig

__all__ = [
    "BatchingConfig",
    "ModelConfig",
    "ServerConfig",
    "ServerLimits",
    "TensorConfig",
    "TokenizerConfig",
    "WorkerConfig",
]
