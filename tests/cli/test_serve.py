"""`trioserve serve` puts the configuration together and hands it to the server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trioserve import cli
from trioserve.cli import serve
from trioserve.config import ConfigError, ModelConfig, ServerConfig


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerConfig, list[ModelConfig]]]:
    calls: list[tuple[ServerConfig, list[ModelConfig]]] = []

    def serve_forever(config: ServerConfig, models: list[ModelConfig]) -> int:
        calls.append((config, models))
        return 0

    monkeypatch.setitem(sys.modules, "trioserve.server", SimpleNamespace(serve_forever=serve_forever))
    return calls


def test_options_reach_the_server(
    repository: Path, served: list[tuple[ServerConfig, list[ModelConfig]]]
) -> None:
    options = ["--port", "0", "--host", "::1", "--unix", "/tmp/s", "--grace", "2", "--log-level", "debug"]
    settings = ["--set", "limits.max_binds=64", "--set", "on_fin=cancel"]
    assert cli.main(["serve", "--models", str(repository), *options, *settings]) == 0
    [(config, models)] = served
    assert [model.name for model in models] == ["double"]
    assert (config.port, config.host, config.unix_path, config.grace_s) == (0, "::1", "/tmp/s", 2.0)
    assert (config.log_level, config.limits.max_binds, config.on_fin) == ("debug", 64, "cancel")


def test_file_and_environment(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.toml"
    file.write_text('models = "repository"\nport = 1\nhost = "::1"\n')
    monkeypatch.setenv("TRIOSERVE_PORT", "2")
    config, models = serve.configure(parsed("--config", str(file)))
    assert (config.port, config.host, config.models) == (2, "::1", str(repository))
    assert len(models) == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "trioserve serve --models PATH"),
        (["--set", "port"], "KEY=VALUE"),
        (["--set", "limits.max_bind=3"], 'did you mean "max_binds"?'),
        (["--models", "/nowhere"], "nothing there"),
        (["--port", "70000"], "from 0 to 65,535"),
        (["--config", "/nowhere.toml"], "a file that exists"),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    served: list[tuple[ServerConfig, list[ModelConfig]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["serve", *arguments]) == 1
    assert words in capsys.readouterr().err
    assert served == []


def test_settings_are_toml_or_text() -> None:
    assert serve._settings(["a=3", "b = true", "c=plain text", 'd="quoted"', "e=1=2"]) == {
        "a": 3, "b": True, "c": "plain text", "d": "quoted", "e": "1=2",
    }  # fmt: skip
    with pytest.raises(ConfigError):
        serve._settings(["novalue"])
