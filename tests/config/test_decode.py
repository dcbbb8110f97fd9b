"""Every problem of a table is found, and said in the words of the file."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any

import pytest
from msgspec import Meta

from trioserve.config import ModelConfig, Problem
from trioserve.config._decode import decode, expected

GOOD = """
name = "scale"
backend = "onnx"
file = "model.onnx"
[inputs.x]
dtype = "f4"
dims = [-1, 128]
[batching]
max_rows = 64
window_ms = 1
"""


def problems_of(text: str) -> dict[str, Problem]:
    config, problems = decode(ModelConfig, tomllib.loads(text), lambda _: "model.toml", hidden=("directory",))
    assert (config is None) == bool(problems)
    return {problem.key: problem for problem in problems}


def test_good_table_gives_the_struct() -> None:
    config, problems = decode(ModelConfig, tomllib.loads(GOOD), lambda _: "model.toml")
    assert problems == []
    assert config is not None
    assert config.inputs["x"].dims == [-1, 128]
    assert config.batching.window_ms == 1.0
    assert config.batching.buckets == [16, 32, 64, 128, 256]
    assert config.tokenizer is None


def test_all_problems_at_once() -> None:
    problems = problems_of("""
        nmae = "scale"
        backend = "onx"
        file = ""
        slots = true
        args = 3
        [inputs]
        x = 3
        [tokenizer]
        max_tokens = 1
        [batching]
        layuot = "packed"
        buckets = [16, "a"]
    """)
    assert " ".join(sorted(problems)) == (
        "args backend batching.buckets batching.layuot file inputs.x name nmae slots tokenizer.file"
        " tokenizer.max_tokens"
    )
    assert all(problem.file == "model.toml" for problem in problems.values())


@pytest.mark.parametrize(
    "line, key, wanted, given",
    [
        ('backend = "onx"', "backend", '"onnx" or "python"', '"onx"'),
        ("slots = 0", "slots", "an integer from 1 to 1,048,576 (rows)", "0"),
        ("slots = 1.5", "slots", "an integer from 1 to 1,048,576 (rows)", "1.5"),
        ("slots = true", "slots", "an integer from 1 to 1,048,576 (rows)", "true"),
        ("batching.window_ms = 2.5", "batching.window_ms", "a number from 0 to 2 (milliseconds)", "2.5"),
        ("batching.window_ms = nan", "batching.window_ms", "a number from 0 to 2 (milliseconds)", "nan"),
        (
            "default_deadline_ms = 0",
            "default_deadline_ms",
            "a number above 0, at most 3,600,000 (milliseconds)",
            "0",
        ),
        (
            "batching.buckets = [0]",
            "batching.buckets",
            "a list, each an integer from 1 (ascending token counts)",
            "[0]",
        ),
        ("warmup = 1", "warmup", "true or false", "1"),
        ("inputs = []", "inputs", "a table", "[]"),
        ("batching = 3", "batching", "a table", "3"),
        ('directory = "/"', "directory", None, '"directory"'),
        ('sha256 = "ABC"', "sha256", "a text (64 lower-case hexadecimal digits, or empty)", '"ABC"'),
    ],
)
def test_one_problem(line: str, key: str, wanted: str | None, given: str) -> None:
    head = "\n".join(row for row in GOOD.splitlines()[:4] if not row.startswith(key))
    [problem] = problems_of(f"{head}\n{line}").values()
    assert problem.key == key
    assert wanted is None or problem.expected == wanted
    assert problem.given == given


def test_misspelt_key_is_corrected() -> None:
    problem = problems_of(GOOD + "max-rows = 3")["batching.max-rows"]
    assert problem.hint == 'did you mean "max_rows"?'
    assert (
        problem.expected
        == "one of the keys buckets, layout, max_rows, max_tokens, policy, shadows, window_ms"
    )


def test_missing_key_is_named() -> None:
    problem = problems_of('name = "a"\nbackend = "onnx"')["file"]
    assert (problem.expected, problem.given) == ("a text that is not empty", "nothing")


@pytest.mark.parametrize(
    "kind, words",
    [
        (int, "an integer"),
        (Annotated[int, Meta(ge=3)], "an integer from 3"),
        (Annotated[float, Meta(le=3)], "a number to 3"),
        (Annotated[float, Meta(gt=0)], "a number above 0"),
        (dict[str, Any], "a table"),
        (list[str], "a list, each a text"),
        (str | None, "a text"),
    ],
)
def test_types_in_words(kind: object, words: str) -> None:
    assert expected(kind) == words
