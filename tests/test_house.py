"""The rules of the house that no linter knows."""

import ast
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE_FOLDERS = ("trioserve", "protocol", "tools", "tests", "docs", "examples")
SHIPPED = ("trioserve/", "protocol/", "tools/")


def tracked(*suffixes: str) -> list[str]:
    """What git knows or would add: a file is checked before it is committed, build output never is."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        listed = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # an unpacked source archive
        found = [path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*")]
        listed = [str(path.relative_to(ROOT)) for path in found]
    return [name for name in sorted(listed) if name.endswith(suffixes) and (ROOT / name).is_file()]


PYTHON_FILES = tracked(".py")
SHIPPED_FILES = [name for name in PYTHON_FILES if name.startswith(SHIPPED)]
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 40
FORBIDDEN_MODULE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base_utils"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(read(name))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring: a contract may be as long as it needs to be."""
    body = function.body
    first = body[1] if ast.get_docstring(function) is not None and len(body) > 1 else body[0]
    return (function.end_lineno or 0) - first.lineno + 1


@pytest.mark.parametrize("name", PYTHON_FILES)
def test_modules_are_short(name: str) -> None:
    lines = len(read(name).splitlines())
    assert lines <= MAX_MODULE_LINES


@pytest.mark.parametrize("name", SHIPPED_FILES)
def test_functions_are_short(name: str) -> None:
    long = {f.name: lines for f in functions(name) if (lines := body_lines(f)) > MAX_FUNCTION_LINES}
    assert not long


@pytest.mark.parametrize("name", PYTHON_FILES)
def test_module_names_say_something(name: str) -> None:
    assert not {part.removesuffix(".py").strip("_") for part in Path(name).parts} & FORBIDDEN_MODULE_NAMES


def test_a_virtual_clock_refuses_what_is_real(autojump_clock: object) -> None:
    with pytest.raises(AssertionError, match="virtual clock"), socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
    with pytest.raises(AssertionError, match="virtual clock"):
        subprocess.run(["true"], check=True)


# Spelled in halves, so that this file passes its own test.
UNSAFE = re.compile(
    "|".join(["pick" + "le", "mar" + r"shal\b", "she" + "lve", "dill", "allow_" + "pick" + "le"])
)


@pytest.mark.parametrize("name", SHIPPED_FILES)
def test_no_code_is_ever_deserialized(name: str) -> None:
    """Nothing imports or switches on a format that can run code; naming one in prose is fine."""
    tree = ast.parse(read(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            used = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.keyword) and node.arg is not None:
            allowed = isinstance(node.value, ast.Constant) and node.value.value is False
            used = [] if allowed else [node.arg]
        else:
            continue
        assert not [word for word in used if UNSAFE.search(word)], f"{name}:{getattr(node, 'lineno', '?')}"


UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


@pytest.mark.parametrize("name", tracked(".py", ".md", ".toml", ".lua", "Makefile", "run"))
def test_nothing_is_left_unfinished(name: str) -> None:
    assert not UNFINISHED.search(read(name))
