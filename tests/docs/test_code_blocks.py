"""No code in the documentation is typed into it: what is shown is a file that the suite runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.md")
    if not {"_build", "snippets"} & set(path.relative_to(ROOT).parts)
)
TESTED = [ROOT / "examples", ROOT / "docs" / "snippets"]
# The README is read where no Sphinx is, so its code stands in it, word for word as in a tested file.
VERBATIM = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
FENCE = re.compile(
    r"^(?P<mark>`{3,}|:{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=mark)\s*$", re.MULTILINE | re.DOTALL
)
NOT_CODE = {"text", "console"}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str


def blocks(pages: list[Path]) -> Iterator[Block]:
    for page in pages:
        for match in FENCE.finditer(page.read_text(encoding="utf-8")):
            yield Block(page, match["language"].strip(), match["text"])


def label(block: Block) -> str:
    return f"{block.page.name}-{block.language}"


def included(block: Block) -> Path:
    """The file that a literalinclude shows."""
    return (block.page.parent / block.language.removeprefix("{literalinclude}").strip()).resolve()


def shown_sources() -> list[Path]:
    return [path for folder in TESTED for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("block", list(blocks(PAGES)), ids=label)
def test_pages_show_only_files(block: Block) -> None:
    assert block.language.startswith("{") or block.language in NOT_CODE


@pytest.mark.parametrize(
    "block", [block for block in blocks(PAGES) if block.language.startswith("{literalinclude}")], ids=label
)
def test_shown_files_are_tested_ones(block: Block) -> None:
    path = included(block)
    assert path.is_file()
    assert any(path.is_relative_to(folder) for folder in TESTED)


@pytest.mark.parametrize(
    "block", [block for block in blocks(VERBATIM) if block.language not in NOT_CODE], ids=label
)
def test_code_outside_the_manual_stands_in_a_tested_file(block: Block) -> None:
    assert any(block.text in path.read_text(encoding="utf-8") for path in shown_sources())


def commands() -> Iterator[tuple[str, str]]:
    for block in blocks([*PAGES, *VERBATIM]):
        if block.language == "console":
            yield from (
                (block.page.name, line[2:]) for line in block.text.splitlines() if line.startswith("$ ")
            )


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):.* ## ", makefile, re.MULTILINE))


def shell_lines() -> set[str]:
    """Every line of every tested shell script, joined where a backslash continues it."""
    scripts = [path for path in shown_sources() if path.suffix == ".sh"]
    return {line for path in scripts for line in path.read_text(encoding="utf-8").splitlines()}


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_commands_are_targets_or_tested_lines(page: str, command: str) -> None:
    words = command.partition("#")[0].split()
    if words[0] == "make":
        assert set(words[1:]) <= targets(), page
    elif words[0] == ".venv/bin/python":
        assert ROOT / words[1] in shown_sources(), page
    else:
        assert " ".join(words) in shell_lines(), page
