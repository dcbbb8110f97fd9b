"""Turning the text of rows into token ids, a burst at a time. Imported by tokenizer processes only.

`encode_batch` on a burst costs less than half of encoding its texts one by one, and nothing else of the server has to
wait for it here.
"""

from __future__ import annotations

import importlib
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trioserve.backends import LoadError, verify_sha256
from trioserve.execution._descriptors import StageBatch, StageResult
from trioserve.execution._report import report
from trioserve.execution._rows import clipped
from trioserve.execution._warmup import ServiceTimes, time_call
from trioserve_protocol import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from trioserve.config import ModelConfig
    from trioserve.memory import Slab

WARMUP_TEXT: Final = "what does it cost to turn a question of common length into tokens?"
WARMUP_SIZES: Final = (1, 32)


def load_tokenizer(config: ModelConfig, slab: Slab) -> TokenizerRunner:
    """Load the tokenizer of a model.

    Raises:
        LoadError: The library is missing, or the file is not a tokenizer, or not the one configured.
    """
    path, settings = config.tokenizer_path, config.tokenizer
    if path is None or settings is None:
        raise LoadError(f"{config.name}: the model has no tokenizer")
    try:
        library: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise LoadError(
            f"{config.name}: a text model needs the package tokenizers (the extra trioserve[tokenizers]): {error}"
        ) from error
    if not path.is_file():
        raise LoadError(f"{path}: no such file")
    verify_sha256(path, settings.sha256)
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:
        raise LoadError(f"{path}: not a tokenizer: {error}") from error
    # Files carry the padding and truncation of whoever exported them; neither is what is served here.
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(settings.max_tokens, slab.layout.max_tokens))
    return TokenizerRunner(config.name, tokenizer, slab)


class TokenizerRunner:
    """Tokenizes batches of one model over its slab. Used from one thread."""

    def __init__(self, name: str, tokenizer: Any, slab: Slab) -> None:  # noqa: ANN401  untyped library
        self._name = name
        self._tokenizer = tokenizer
        self._text = slab.text
        self._tokens = slab.tokens

    def run(self, batch: StageBatch) -> StageResult:
        """Write the token ids of each row of the batch to its slot.

        Returns:
            With the number of tokens of each row in `lengths`, 0 for a row that failed: text that is not UTF-8,
            or that has no tokens at all.
        """
        started_ns = time.monotonic_ns()
        texts, failures = self._texts(batch)
        input_ns = time.monotonic_ns()
        ids = self._encode(texts, failures)
        run_ns = time.monotonic_ns()
        lengths = np.fromiter(map(len, ids), np.uint32, len(ids))
        for row in np.flatnonzero(lengths == 0).tolist():
            failures.setdefault(row, (int(ErrorCode.INVALID_ARGUMENT), "the text has no tokens"))
        self._store(batch, ids, lengths)
        ordered = tuple((row, code, message) for row, (code, message) in sorted(failures.items()))
        return StageResult(
            batch.model,
            batch.seq,
            0,
            "",
            started_ns,
            input_ns,
            run_ns,
            time.monotonic_ns(),
            0,
            0,
            ordered,
            lengths,
        )

    def interrupt(self) -> None:
        """A burst takes a millisecond: it is finished."""

    def resume(self) -> None:
        """See `interrupt`."""

    def close(self) -> None:
        """Nothing to let go of."""

    def warm_up(self) -> ServiceTimes:
        """Tokenize a sentence some times; returns service times by texts."""
        times = ServiceTimes({}, {})
        for rows in WARMUP_SIZES:
            texts = [WARMUP_TEXT] * rows
            times.add(rows, time_call(partial(self._tokenizer.encode_batch_fast, texts)))
        return times

    def _texts(self, batch: StageBatch) -> tuple[list[str], dict[int, tuple[int, str]]]:
        """The text of each row, empty where it is not UTF-8, and what is wrong with those."""
        if batch.lengths is None or batch.offsets is None:
            raise AssertionError("a batch for a tokenizer without text: this is a bug")
        texts: list[str] = []
        failures: dict[int, tuple[int, str]] = {}
        view = self._text
        for offset, nbytes in zip(batch.offsets.tolist(), batch.lengths.tolist(), strict=True):
            try:
                texts.append(str(view[offset : offset + nbytes], "utf-8"))
            except UnicodeDecodeError as error:
                message = f"the text is not UTF-8: {error.reason} at byte {error.start}"
                failures[len(texts)] = (int(ErrorCode.INVALID_BYTES), message)
                texts.append("")
        return texts, failures

    def _encode(self, texts: list[str], failures: dict[int, tuple[int, str]]) -> list[Sequence[int]]:
        """Token ids of each text; none for those that failed, before or here."""
        encodings = self._encode_together(texts)
        if encodings is None:
            return self._encode_alone(texts, failures)
        ids: list[Sequence[int]] = [encoding.ids for encoding in encodings]
        for row in failures:
            ids[row] = ()
        return ids

    def _encode_together(self, texts: list[str]) -> list[Any] | None:
        """The library's encodings, or None if it raised on one of the texts."""
        encodings: list[Any] | None = None
        try:
            encodings = self._tokenizer.encode_batch_fast(texts)
        except BaseException as error:  # noqa: ASYNC103, BLE001  whatever the library raises, also its panics
            report(f"the tokenizer of {self._name!r} raised on a burst of {len(texts)} texts", error)
        return encodings

    def _encode_alone(self, texts: list[str], failures: dict[int, tuple[int, str]]) -> list[Sequence[int]]:
        ids: list[Sequence[int]] = []
        for row, text in enumerate(texts):
            try:
                ids.append(() if row in failures else self._tokenizer.encode(text).ids)
            except BaseException as error:  # noqa: ASYNC103, BLE001  as above
                message = f"the tokenizer of {self._name!r} raised {type(error).__name__}"
                failures[row] = (int(ErrorCode.MODEL_RAISED), message)
                ids.append(())
        return ids

    def _store(self, batch: StageBatch, ids: list[Sequence[int]], lengths: npt.NDArray[np.uint32]) -> None:
        longest = int(lengths.max())
        rows = np.zeros((len(ids), longest), np.uint32)
        real = np.arange(longest, dtype=np.uint32) < lengths[:, None]
        rows[real] = np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        for first, position, count in clipped(batch.ranges, 0, len(ids)):
            self._tokens[first : first + count, :longest] = rows[position : position + count]
