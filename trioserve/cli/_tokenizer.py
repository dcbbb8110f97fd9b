"""Does a tokenizer load, and does it make ids?"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from trioserve.config import ModelConfig, Problem


def can_look() -> bool:
    """Whether the `tokenizers` library is installed."""
    return importlib.util.find_spec("tokenizers") is not None


def tokenizer_problems(config: ModelConfig, origin: str) -> list[Problem]:
    """Loads the tokenizer and has it encode a word.

    Args:
        config: A model with a tokenizer whose file exists.
        origin: Where the configuration came from, for the problems.
    """
    library: Any = importlib.import_module("tokenizers")
    try:
        loaded = library.Tokenizer.from_file(str(config.tokenizer_path))
        loaded.no_padding()
        ids = loaded.encode("hello").ids
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        return [Problem(origin, "tokenizer.file", "a tokenizer.json that loads", str(error))]
    return (
        [] if ids else [Problem(origin, "tokenizer.file", "a tokenizer that makes ids", "no id for a word")]
    )
