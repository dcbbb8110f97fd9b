"""What the documentation shows is run, against servers that are started as it says. Real processes and sockets."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import serving
from tests.tls.certificates import Pki
from trioserve.config import load_server_config
from trioserve.transport import TokenFile

ROOT = Path(__file__).parents[2]
SNIPPETS = ROOT / "docs" / "snippets"
STOP_S, RUN_S = 30.0, 60.0

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def environment(commands: Path | None = None) -> dict[str, str]:
    """The environment of a user who has trioserve installed; `commands` is a folder on the search path."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "protocol", "tools"))
    search = [str(path) for path in (commands, Path(sys.executable).parent) if path is not None]
    return {**os.environ, "PYTHONPATH": paths, "PATH": os.pathsep.join([*search, os.environ["PATH"]])}


def served(command: list[str], folder: Path, commands: Path | None = None) -> Iterator[int]:
    """Run a command that serves; yield its port once it is ready, then stop it in order."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(commands), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        yield ready_port(iter(process.stderr.readline, ""))
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=STOP_S)
    assert process.returncode == 0, rest


def on_a_free_port(source: Path, folder: Path) -> Path:
    """A copy of a file that names port 7001, as the text around it does, with port 0 instead."""
    text = source.read_text(encoding="utf-8")
    assert text.count("7001") == 1
    copy = folder / source.name
    copy.write_text(text.replace("7001", "0"), encoding="utf-8")
    return copy


def served_program(program: Path, folder: Path) -> Iterator[int]:
    yield from served([sys.executable, str(on_a_free_port(program, folder))], folder)


def ready_port(lines: Iterator[str]) -> int:
    """The TCP port in the log event that says that the server is ready."""
    seen = []
    for line in lines:
        seen.append(line)
        if line.startswith("{") and (event := json.loads(line))["event"] == "server_ready":
            [address] = event["addresses"]
            return int(address.rpartition(":")[2])
    raise AssertionError(f"the server ended before it was ready: {''.join(seen)}")


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    yield from served_program(SNIPPETS / "double.py", tmp_path_factory.mktemp("double"))


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    yield from served_program(ROOT / "examples" / "scale.py", tmp_path_factory.mktemp("scale"))


@pytest.fixture
def scale_over_tls(pki: Pki) -> Iterator[int]:
    with serving("scale", tls={"certificate": pki.server}, host="localhost") as server:
        yield int(server.addresses[0].rpartition(":")[2])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `trioserve` command, which an uninstalled checkout does not have."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "trioserve"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trioserve.cli "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder in which `models` is the repository of the guides."""
    onnx = pytest.importorskip("onnx")
    shutil.copytree(SNIPPETS / "models", tmp_path / "models")
    shutil.copy(SNIPPETS / "double.py", tmp_path / "models")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "affine", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    (tmp_path / "models" / "affine" / "model.onnx").write_bytes(model.SerializeToString())
    on_a_free_port(SNIPPETS / "server.toml", tmp_path)
    return tmp_path


def run_shell(script: Path, port: int, commands: Path | None = None) -> str:
    for program in ("nc", "xxd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    text = script.read_text(encoding="utf-8").replace("7001", str(port))
    return succeed(["bash", "-euo", "pipefail", "-c", text], ROOT, commands)


def succeed(command: list[str], repository: Path, commands: Path | None) -> str:
    """What a command of the guide prints, which must end well."""
    done = subprocess.run(
        command,
        cwd=repository,
        env=environment(commands),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def without_times(dump: str) -> str:
    """A hex dump of one reply with the bytes at 20..23 and 28..31, which are times, and the text column cut out."""
    lines = [line[:49].split() for line in dump.splitlines()]
    lines[1][3:5] = ["time"]
    lines[1][-2:] = ["time"]
    return "\n".join(" ".join(words) for words in lines)


def test_a_request_by_hand(double: int) -> None:
    shown = (SNIPPETS / "by_hand.out").read_text(encoding="utf-8")
    assert without_times(run_shell(SNIPPETS / "by_hand.sh", double)) == without_times(shown)


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("infer.sh", "[2.0, 4.0, 6.0, 8.0]"),
        ("nc_infer.sh", "status 0.0 OK"),
        ("nc_bind.sh", '"outputs": {"y": [[2.0, 4.0, 6.0, 8.0]]}'),
        ("nc_explain.sh", "status 0.0 OK"),
        ("nc_statistics.sh", '"type": "ADMIN"'),
    ],
)
def test_the_tools_that_explain(double: int, commands: Path, script: str, shown: str) -> None:
    assert shown in run_shell(SNIPPETS / script, double, commands)


def test_every_script_is_run() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert not [path.name for path in SNIPPETS.glob("*.sh") if f'"{path.name}"' not in source]


def test_a_ping_by_hand(double: int) -> None:
    answer = run_shell(SNIPPETS / "ping.sh", double)
    assert answer.startswith("00000000: 5453 0133")
    assert re.fullmatch(r"(00000\d+0: .*\n){2}", answer)


def test_the_guide_s_repository_has_no_problem(repository: Path, commands: Path) -> None:
    command = (SNIPPETS / "check.sh").read_text(encoding="utf-8").split()
    succeed(command, repository, commands)


@pytest.mark.parametrize("script", ["serve.sh", "serve_config.sh"])
def test_the_guide_s_repository_is_served(repository: Path, commands: Path, script: str) -> None:
    command = (SNIPPETS / script).read_text(encoding="utf-8").replace("7001", "0").split()
    for port in served([str(commands / command[0]), *command[1:]], repository, commands):
        assert "5453 0133" in run_shell(SNIPPETS / "ping.sh", port)


def test_the_guide_s_models_are_changed_while_they_are_served(repository: Path, commands: Path) -> None:
    command = (SNIPPETS / "serve.sh").read_text(encoding="utf-8").replace("7001", "0").split()
    for port in served([str(commands / command[0]), *command[1:]], repository, commands):
        told = run_shell(SNIPPETS / "reload.sh", port, commands)
        shown = ["loaded double:1", "unloaded affine:1", "loaded affine:1", "nothing to do"]
        assert [line.partition(" (")[0] for line in told.splitlines()] == shown


def test_the_guide_s_traffic_is_recorded_and_replayed(repository: Path, commands: Path) -> None:
    record, replay = (
        (SNIPPETS / name).read_text(encoding="utf-8").replace("7001", "0").split()
        for name in ("record.sh", "replay.sh")
    )
    for port in served([str(commands / record[0]), *record[1:]], repository, commands):
        assert "5453 0133" in run_shell(SNIPPETS / "ping.sh", port)
    assert succeed(replay, repository, commands).startswith("double: 0 requests")


CLIENTS = sorted(SNIPPETS.glob("client_*.py")) + [
    SNIPPETS / name for name in ("deadlines.py", "priority.py", "timing.py", "readme_client.py")
]


@pytest.mark.parametrize(
    "program", [*CLIENTS, ROOT / "examples" / "scale_client.py"], ids=lambda path: path.stem
)
def test_a_client_program(program: Path, scale: int) -> None:
    source = program.read_text(encoding="utf-8")
    assert source.count("7001") == 1
    command = [sys.executable, "-c", source.replace("7001", str(scale))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_quotas_are_a_configuration() -> None:
    config = load_server_config(SNIPPETS / "quotas.toml")
    assert config.quota.burst == 50
    assert sorted(config.tenants) == ["checkout", "reports"]


def test_a_token_is_made(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    script = (SNIPPETS / "make_token.sh").read_text(encoding="utf-8")
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, timeout=RUN_S, check=True)
    secret = (tmp_path / "web.token").read_bytes().strip()
    found = TokenFile(str(tmp_path / "tokens.txt"), 0).find(secret, 0)
    assert found is not None
    assert found.name == "web"


def test_the_secured_server_is_a_configuration(tmp_path: Path) -> None:
    shutil.copy(SNIPPETS / "secure.toml", tmp_path)
    config = load_server_config(tmp_path / "secure.toml")
    assert config.auth.tokens == str(tmp_path / "tokens.txt")
    assert config.tls.key == str(tmp_path / "server.key")


def test_the_client_of_the_secured_server(tmp_path: Path, pki: Pki, scale_over_tls: int) -> None:
    shutil.copy(pki.ca, tmp_path / "ca.pem")
    source = (SNIPPETS / "tls_client.py").read_text(encoding="utf-8").replace("7001", str(scale_over_tls))
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    assert done.stdout == "[2. 2. 2. 2.]\n"


def test_the_readme_s_server(tmp_path: Path) -> None:
    for port in served_program(SNIPPETS / "readme_server.py", tmp_path):
        test_a_client_program(SNIPPETS / "readme_client.py", port)
