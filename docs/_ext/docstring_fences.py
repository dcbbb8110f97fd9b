"""Fenced code in docstrings: written as in Markdown, which editors show well, and handed to Sphinx as code blocks."""

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

FENCE = "```"


def with_code_blocks(lines: list[str]) -> list[str]:
    """Docstring lines with each fence made a `code-block` directive of the same indentation."""
    made: list[str] = []
    inside = False
    for line in lines:
        text = line.lstrip()
        if not text.startswith(FENCE):
            made.append(f"    {line}" if inside and text else line)
        elif inside:
            inside = False
            made.append("")
        else:
            inside = True
            indent = line[: len(line) - len(text)]
            made += ["", f"{indent}.. code-block:: {text.removeprefix(FENCE) or 'text'}", ""]
    return made


def process(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Rewrite the lines in place, as autodoc asks."""
    lines[:] = with_code_blocks(lines)
    if what in {"attribute", "property"}:
        # Napoleon takes what stands before a colon in the first line of an attribute's docstring for its type; an
        # escaped line end is a first line that reads as nothing.
        lines.insert(0, "\\")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the hook to run before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"version": "1", "parallel_read_safe": True}
