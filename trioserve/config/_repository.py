"""A model repository: a folder of models, each a folder with a `model.toml`, or a Python file.

    repository/
        minilm/            model.toml  model.onnx  tokenizer.json
        scale.py           a `trioserve.Model` subclass, with no further configuration
        ranker/            model.toml  1/model.onnx  2/model.onnx     versions; see `_versions`

Names that start with `.` or `_`, and files that are not Python, are no models. The code of a Python model
never runs in the process that reads the repository: a short-lived process of its own tells the class's name
and signature.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from trioserve.config._decode import decode
from trioserve.config._files import file_problems
from trioserve.config._model import ModelConfig
from trioserve.config._problem import ConfigError, Problem, shown
from trioserve.config._python_file import class_table, signature_clashes
from trioserve.config._rules import model_problems
from trioserve.config._versions import (
    MODEL_FILE,
    is_version,
    policy_problems,
    served_versions,
    version_folders,
    version_table,
)


def load_repository(path: str | Path) -> list[ModelConfig]:
    """Reads all models of a repository, or the one model that `path` is.

    Args:
        path: A repository's folder, a model's folder, a `model.toml` or a Python file.

    Returns:
        The models by name, then version. Their files exist and have the SHA-256 that is configured.

    Raises:
        ConfigError: With everything that is wrong in any of them.
    """
    root = Path(path)
    configs: list[ModelConfig] = []
    problems: list[Problem] = []
    paths = model_paths(root)
    for path_of_model in paths:
        config, found = read_model(path_of_model)
        problems += found
        configs += [config] if config else []
    problems += repository_problems(root, paths, configs)
    if problems:
        raise ConfigError(problems)
    return sorted(configs, key=lambda config: (config.name, config.version))


def load_model_config(path: str | Path) -> ModelConfig:
    """Reads one model.

    Args:
        path: The model's folder, its `model.toml`, or a Python file.

    Raises:
        ConfigError: With everything that is wrong with it.
    """
    config, problems = read_model(Path(path))
    if config is None:
        raise ConfigError(problems)
    return config


def find_models(root: Path, name: str, version: int = 0) -> list[ModelConfig]:
    """Reads the models of one name in a repository.

    Args:
        root: The repository, or a model.
        name: What clients call it.
        version: The version that is wanted; 0 for those that are to be served.

    Returns:
        None of them if there is no such model.

    Raises:
        ConfigError: With everything that is wrong with it.
    """
    entries = _entries(root)
    near = [entry for entry in entries if name in (entry.name, entry.stem)]
    for entry in [*near, *(entry for entry in entries if entry not in near)]:
        there = version_folders(entry) if entry.is_dir() else {}
        paths = [there[version]] if version in there else served_versions(entry)
        read = [read_model(path) for path in paths]
        problems = [problem for _, found in read for problem in found]
        if problems and entry in near:
            raise ConfigError(problems)
        configs = [config for config, _ in read if config is not None and config.name == name]
        if configs:
            return [config for config in configs if version in (0, config.version)]
    return []


def is_model_folder(path: Path) -> bool:
    """Whether a folder is one model's, or one version's of it, and not one in which Python files stand."""
    return (path / MODEL_FILE).is_file() or is_version(path)


def model_paths(root: Path) -> list[Path]:
    """Where the models of a repository are: `root` itself if it is one, else what it holds, by name.

    Of a model with several versions, those that are to be served.
    """
    return [path for entry in _entries(root) for path in served_versions(entry)]


def _entries(root: Path) -> list[Path]:
    if not root.is_dir() or (root / MODEL_FILE).exists():
        return [root]
    entries = sorted(entry for entry in root.iterdir() if entry.name[0] not in "._")
    return [entry for entry in entries if entry.is_dir() or entry.suffix == ".py"]


def read_model(path: Path) -> tuple[ModelConfig | None, list[Problem]]:
    """Reads one model; returns it and no problem, or None and at least one."""
    file, table, problems = _model_table(path)
    if problems:
        return None, problems
    config, problems = _decode(table, file)
    if config is None:
        return None, problems
    problems = file_problems(config, str(file))
    if config.backend == "python" and not problems:
        config, problems = _with_class(config, table, file)
        if config is None:
            return None, problems
    problems = problems + model_problems(config, str(file))
    return (None, problems) if problems else (config, [])


def _model_table(path: Path) -> tuple[Path, dict[str, Any], list[Problem]]:
    """Where a model's configuration stands and what it says; a Python file alone says that it is one."""
    if path.suffix == ".py":
        missing = [] if path.is_file() else [Problem(str(path), "", "a Python file", "nothing there")]
        return path, {"backend": "python", "file": path.name}, missing
    file = path / MODEL_FILE if path.is_dir() else path
    if is_version(path):
        own, problems = read_toml(file) if file.exists() else ({}, [])
        table, found = version_table(path, own)
        return file, table, problems + found
    table, problems = read_toml(file)
    if not problems and path.is_dir():
        problems = policy_problems(path, table)
    return file, {"name": file.absolute().parent.name, **table}, problems


def _decode(table: dict[str, Any], file: Path) -> tuple[ModelConfig | None, list[Problem]]:
    config, problems = decode(
        ModelConfig, {"name": file.stem, **table}, lambda _: str(file), hidden=("directory",)
    )
    if config is None:
        return None, problems
    return msgspec.structs.replace(config, directory=str(file.absolute().parent)), []


def _with_class(
    config: ModelConfig, table: dict[str, Any], file: Path
) -> tuple[ModelConfig | None, list[Problem]]:
    """The configuration with what the class of a Python model says where the file says nothing."""
    said, problems = class_table(config, str(file))
    if not problems:
        configured = {group: msgspec.to_builtins(getattr(config, group)) for group in ("inputs", "outputs")}
        problems = signature_clashes(configured, said, str(file))
    if problems:
        return None, problems
    batching = {**said.pop("batching", {}), **table.get("batching", {})}
    whole, problems = _decode({**said, **table, "batching": batching}, file)
    if whole is not None:
        hint = 'the class says them, for example {} = {{"x": trioserve.Tensor("f4", [-1, 128])}}'
        for key in ("inputs", "outputs"):
            if not getattr(whole, key):
                problems.append(Problem(str(file), key, "at least one tensor", "nothing", hint.format(key)))
    return (None, problems) if problems else (whole, [])


def read_toml(file: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Parses a file; an unreadable one is a problem, not an exception."""
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream), []
    except FileNotFoundError:
        return {}, [Problem(str(file), "", "a file that exists", "nothing there")]
    except OSError as error:
        return {}, [Problem(str(file), "", "a file that can be read", error.strerror or str(error))]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, [Problem(str(file), "", "TOML in UTF-8", str(error))]


def repository_problems(root: Path, paths: list[Path], configs: list[ModelConfig]) -> list[Problem]:
    """What is wrong with a repository beyond its single models.

    Args:
        root: The repository.
        paths: Where its models are, as `model_paths` gives them.
        configs: Those of them that are usable.
    """
    if not paths:
        expected = f"folders with a {MODEL_FILE}, or Python files with a trioserve.Model"
        names = sorted(entry.name for entry in root.iterdir())
        given = f"a folder with {', '.join(names[:5])}" if names else "an empty folder"
        return [Problem(str(root), "", expected, given)]
    expected = "a name and version that no other model of the repository has"
    hint = "give one of them another name or version"
    first: dict[tuple[str, int], ModelConfig] = {}
    problems: list[Problem] = []
    for config in configs:
        other = first.setdefault((config.name, config.version), config)
        if other is not config:
            given = f"{shown(config.name)} version {config.version}, also in {other.directory}"
            problems.append(Problem(config.directory, "name", expected, given, hint))
    return problems
