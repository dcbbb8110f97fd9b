"""`trioserve check PATH`: everything that is wrong with models or with a server's configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from trioserve.cli import COMMANDS, _graph, _tokenizer
from trioserve.cli._table import nbytes_text
from trioserve.config import (
    ConfigError,
    ModelConfig,
    Problem,
    ServerConfig,
    TensorConfig,
    load_server_config,
    model_paths,
    read_model,
    repository_problems,
)

_EPILOG = """\
For each problem: the file and key, what was expected, what was given. Looks at files, hashes, signatures,
ONNX graphs and tokenizers; of a Python model it imports the file, in a process of its own, but runs no model.
Exit status 0 means that nothing is wrong.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser(
        "check",
        help=COMMANDS["check"],
        description=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a repository, a model's folder, a model.toml, a Python file, or a server's .toml",
    )


def run(args: argparse.Namespace) -> int:
    """Prints what is right and what is wrong; 0 if nothing is wrong, else 1."""
    if args.path.suffix == ".toml" and args.path.name != "model.toml":
        problems = _check_server(args.path)
    else:
        problems = _check_models(args.path)
    print("nothing is wrong" if not problems else "1 problem" if problems == 1 else f"{problems} problems")
    return 1 if problems else 0


def _check_server(path: Path) -> int:
    try:
        config = load_server_config(path)
    except ConfigError as error:
        print(f"{error}\n")
        return len(error.problems)
    faults = _file_faults(config)
    print("\n".join(faults) or f"{path}: ok", end="\n\n")
    return len(faults)


def _file_faults(config: ServerConfig) -> list[str]:
    """What is wrong with the files that say who may connect."""
    from trioserve.transport import BadFile, read_tokens, server_context

    try:
        if config.tls.certificate:
            server_context(config.tls)
        if config.auth.tokens:
            read_tokens(config.auth.tokens)
    except (OSError, BadFile) as error:
        return [str(error)]
    return []


def _check_models(root: Path) -> int:
    """Prints each model in turn; returns the number of problems."""
    configs: list[ModelConfig] = []
    problems: list[Problem] = []
    paths = model_paths(root)
    for path in paths:
        config, found = read_model(path)
        if config is not None:
            configs.append(config)
            found += _deep_problems(config, str(path / "model.toml" if path.is_dir() else path))
        problems += found
        if config is None or found:
            print(*found, sep="\n", end="\n\n")
        else:
            print(f"{path}: ok\n{_summary(config)}\n")
    general = repository_problems(root, paths, configs)
    if general:
        print(*general, sep="\n", end="\n\n")
    return len(problems) + len(general)


def _deep_problems(config: ModelConfig, origin: str) -> list[Problem]:
    """What only loading the files shows."""
    problems: list[Problem] = []
    if config.backend == "onnx" and _graph.can_look():
        problems += _graph.graph_problems(config, origin)
    if config.tokenizer is not None and _tokenizer.can_look():
        problems += _tokenizer.tokenizer_problems(config, origin)
    return problems


def _summary(config: ModelConfig) -> str:
    batching = config.batching
    size = nbytes_text(config.file_path.stat().st_size)
    tokens = f" or {batching.max_tokens} tokens, {batching.layout}" if batching.max_tokens else ""
    lines = [
        f"  {config.name} version {config.version}, {config.backend}, {size}",
        f"  {signature_text(config)}",
        f"  batches of up to {batching.max_rows} rows{tokens}, window {batching.window_ms:g} ms",
    ]
    if config.backend == "onnx" and not _graph.can_look():
        lines.append("  the graph was not looked at: onnxruntime is not installed")
    if config.tokenizer is not None and not _tokenizer.can_look():
        lines.append("  the tokenizer was not looked at: tokenizers is not installed")
    return "\n".join(lines)


def signature_text(config: ModelConfig) -> str:
    """Inputs and outputs in a line: `x f4[-1, 128] -> y f4[-1, 64]`."""
    return f"{_tensors(config.inputs)} -> {_tensors(config.outputs)}"


def _tensors(tensors: dict[str, TensorConfig]) -> str:
    return ", ".join(f"{name} {tensor.dtype}{tensor.dims}" for name, tensor in tensors.items())
