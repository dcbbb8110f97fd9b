"""Configuration: frozen structs, where their values come from, and what is wrong with them in words."""

from trioserve.config._files import file_problems
from trioserve.config._model import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.config._places import LOOPBACK_HOSTS, admin_socket, run_dir
from trioserve.config._problem import ConfigError, Problem
from trioserve.config._repository import (
    find_models,
    is_model_folder,
    load_model_config,
    load_repository,
    model_paths,
    read_model,
    repository_problems,
)
from trioserve.config._rules import config_problems, model_problems
from trioserve.config._security import AdminConfig, AuthConfig, TlsConfig
from trioserve.config._server import QuotaConfig, RepositoryConfig, ServerConfig, ServerLimits, WorkerConfig
from trioserve.config._sources import load_server_config

__all__ = [
    "LOOPBACK_HOSTS",
    "AdminConfig",
    "AuthConfig",
    "BatchingConfig",
    "ConfigError",
    "ModelConfig",
    "Problem",
    "QuotaConfig",
    "RepositoryConfig",
    "ServerConfig",
    "ServerLimits",
    "TensorConfig",
    "TlsConfig",
    "TokenizerConfig",
    "WorkerConfig",
    "admin_socket",
    "config_problems",
    "file_problems",
    "find_models",
    "is_model_folder",
    "load_model_config",
    "load_repository",
    "load_server_config",
    "model_paths",
    "model_problems",
    "read_model",
    "repository_problems",
    "run_dir",
]
