"""Real questions to ask: the English part of the ChatterBot corpus (BSD licence), out of its wheel."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from trioserve_tools.wheels import Wheel, fetch

CORPUS = Wheel(
    "chatterbot-corpus", "1.3.3", "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154"
)

_FOLDER = PurePosixPath("chatterbot_corpus/data/english")


class Question(NamedTuple):
    """What somebody asked."""

    text: str
    topic: str


def load_questions(wheels: Path) -> list[Question]:
    """Loads all questions in the corpus's order, repetitions included: 2,026 of them, 749 different.

    Args:
        wheels: Folder that downloaded wheels are kept in.

    Raises:
        WheelError: The wheel cannot be had.
    """
    return questions_of(fetch(CORPUS, wheels).read_bytes())


def questions_of(wheel: bytes) -> list[Question]:
    """The questions of a wheel: the first line of every conversation."""
    questions: list[Question] = []
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in sorted(archive.namelist()):
            path = PurePosixPath(name)
            if path.parent == _FOLDER and path.suffix == ".yml":
                topic = path.stem.replace("_", " ")
                conversations = msgspec.yaml.decode(archive.read(name))["conversations"]
                questions += [Question(_plain(lines), topic) for lines in conversations]
    return questions


def _plain(lines: Sequence[object]) -> str:
    """A conversation's first line, on one line. YAML reads some of them as numbers."""
    return " ".join(str(lines[0]).split())


def different(questions: list[Question]) -> list[Question]:
    """Each question once, in order of first appearance."""
    return list({question.text: question for question in questions}.values())
