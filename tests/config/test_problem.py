"""Problems read well, also when what they quote does not."""

from __future__ import annotations

import pytest

from trioserve.config import ConfigError, Problem
from trioserve.config._problem import did_you_mean, shown


def test_problem_as_text() -> None:
    problem = Problem("m/model.toml", "slots", "an integer", '"x"', "write a number")
    assert str(problem) == (
        'm/model.toml: slots\n  expected  an integer\n  given     "x"\n  hint      write a number'
    )


def test_problem_of_a_whole_file_without_a_hint() -> None:
    assert str(Problem("m", "", "a folder", "nothing")) == "m\n  expected  a folder\n  given     nothing"


def test_error_lists_all_problems() -> None:
    error = ConfigError([Problem("a", "k", "x", "y"), Problem("b", "l", "x", "y")])
    assert [problem.file for problem in error.problems] == ["a", "b"]
    assert str(error).count("expected") == 2


def test_error_without_a_problem_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        ConfigError([])


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "nothing"),
        (True, "true"),
        ("a", '"a"'),
        ({"a": 1}, "a table"),
        ([1, "a"], '[1, "a"]'),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...]"),
        ("a\n\x1b[31m", '"a\\n\\x1b[31m"'),
        (1.5, "1.5"),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert shown(value) == text


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 1000)) == 100
    assert shown("x" * 1000).endswith("...")


@pytest.mark.parametrize(
    "word, hint",
    [("layuot", 'did you mean "layout"?'), ("MAX-ROWS", 'did you mean "max_rows"?'), ("zzz", "")],
)
def test_spelling(word: str, hint: str) -> None:
    assert did_you_mean(word, ["layout", "max_rows"]) == hint
