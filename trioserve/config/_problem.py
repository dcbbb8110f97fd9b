"""What is wrong with a configuration, in words: which file, which key, what was expected, what was given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

_GIVEN_WIDTH = 100
"""Characters of a given value that are shown, in code points."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong and what to do about it."""

    file: str
    """Where it stands: a path, or the name of another source such as `environment`."""

    key: str
    """The dotted key, the name of a variable or flag; empty for the file as a whole."""

    expected: str
    """What would have been right."""

    given: str
    """What was found, quoted as `shown` does it."""

    hint: str = ""
    """What to do, where that is not plain from the rest."""

    def __str__(self) -> str:
        """The problem as indented lines under a heading of file and key."""
        heading = f"{self.file}: {self.key}" if self.key else self.file
        lines = [heading, f"  expected  {self.expected}", f"  given     {self.given}"]
        if self.hint:
            lines.append(f"  hint      {self.hint}")
        return "\n".join(lines)


class ConfigError(Exception):
    """A configuration is not usable. `str()` is a text for the person who wrote it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Takes every problem that was found, at least one."""
        self.problems = tuple(problems)
        if not self.problems:
            raise AssertionError("a ConfigError without a problem: this is a bug")
        super().__init__("\n".join(str(problem) for problem in self.problems))


def shown(value: object) -> str:
    """A value as it would be written in TOML, shortened and without control characters."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            text = f'"{value}"'
        case dict():
            text = "a table"
        case list():
            text = (
                "["
                + ", ".join(shown(item) for item in value[:16])
                + (", ..." if len(value) > 16 else "")
                + "]"
            )
        case _:
            text = str(value)
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return safe if len(safe) <= _GIVEN_WIDTH else safe[: _GIVEN_WIDTH - 3] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to a misspelt one, empty if none is near."""
    folded = {name.replace("-", "_").casefold(): name for name in known}
    near = difflib.get_close_matches(word.replace("-", "_").casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {shown(folded[near[0]])}?" if near else ""
