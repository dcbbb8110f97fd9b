"""`python -m trioserve_tools.demo`: builds MiniLM, serves it, asks it real questions and prints what came of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio

from trioserve.client import Client, connect
from trioserve.errors import DeadlineExceeded
from trioserve_tools.demo._corpus import Question, different, load_questions
from trioserve_tools.demo._report import heading, latency_table, nearest, waterfall
from trioserve_tools.demo._traffic import measure
from trioserve_tools.minilm import build_repository
from trioserve_tools.server_process import running_server
from trioserve_tools.wheels import WheelError

MODEL = "minilm"


class WrongResult(Exception):
    """The server gave a result that is not the right one."""


ASKED = (
    "How do I reset a forgotten password?",
    "The monitor of my notebook stays dark",
    "Are machines able to feel something?",
    "Which planet is nearest to the sun?",
    "Give me a function that sorts a list",
)
"""What the demo's user wants to know; none of them is in the corpus."""

EMBED_ALL_S = 60.0
"""Deadline of all stored questions together."""

DEADLINE_S = 0.001
"""Less than the model takes for any text."""

PUBLISHED_TEXT = "The weather is lovely today."
PUBLISHED = (0.0192, 0.12009, 0.1596, 0.06707, 0.05007)
"""The first components of that text's embedding as the model's authors have it."""


def main(argv: list[str] | None = None) -> int:
    """Runs the demo; 0 if everything went as it must, else 1."""
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.demo", description=__doc__)
    parser.add_argument(
        "--models", type=Path, default=Path(".cache/models"), help="repository (default %(default)s)"
    )
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="downloads (default %(default)s)"
    )
    parser.add_argument("--questions", type=int, default=2026, help="to measure with (default %(default)s)")
    args = parser.parse_args(argv)
    try:
        build_repository(args.models, wheels=args.wheels)
        questions = load_questions(args.wheels)
        trio.run(_demo, args.models, questions, args.questions)
    except WheelError as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        print(
            "the demo failed: " + "; ".join(f"{type(error).__name__}: {error}" for error in errors),
            file=sys.stderr,
        )
        return 1
    return 0


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _demo(models: Path, questions: list[Question], count: int) -> None:
    began_s = time.perf_counter()
    print("Sentence embeddings by all-MiniLM-L6-v2, served by trioserve\n")
    async with running_server(models) as (url, pid):
        print(f"  server    {url}, process {pid}, ready after {time.perf_counter() - began_s:.1f} s")
        async with connect(url) as client:
            stored = different(questions)
            embeddings = await _embed_stored(client, stored)
            await _ask(client, stored, embeddings)
            await _timeline(client)
            await _miss_a_deadline(client)
            await _measure(client, [question.text for question in questions[:count]])
    print("\nThe server was told to stop by SIGTERM and ended with status 0.")


async def _embed_stored(client: Client, stored: list[Question]) -> npt.NDArray[np.float32]:
    """Embeds every stored question with one call."""
    published = await client.infer(MODEL, [PUBLISHED_TEXT])
    if not np.allclose(published[0, :5], PUBLISHED, atol=5e-6):
        raise WrongResult(f"the embedding of {PUBLISHED_TEXT!r} is not the published one: {published[0, :5]}")
    print("  model     gives the published embedding")
    began_s = time.perf_counter()
    with trio.fail_after(EMBED_ALL_S):
        result = await client.infer_many(MODEL, [question.text for question in stored])
    result.raise_for_errors()
    took_s = time.perf_counter() - began_s
    print(f"  stored    {len(stored)} questions, embedded in one call in {took_s:.1f} s\n")
    embeddings: npt.NDArray[np.float32] = result.output
    return embeddings


async def _ask(client: Client, stored: list[Question], embeddings: npt.NDArray[np.float32]) -> None:
    """Finds the stored questions nearest to those of the user."""
    print(heading("Nearest stored questions"))
    for text in ASKED:
        [embedding] = await client.infer(MODEL, [text])
        print(f"\n{nearest(text, embeddings @ embedding, stored)}")


async def _timeline(client: Client) -> None:
    inference = await client.infer_with_timing(MODEL, [ASKED[0]])
    if inference.timing is None:
        raise WrongResult("a reply without the timing that was asked for")
    print(f"\n{heading('One request in the server')}\n{waterfall(inference.timing)}")


async def _miss_a_deadline(client: Client) -> None:
    """Asks for what cannot be done in time: the answer must be in time all the same."""
    began_s = time.perf_counter()
    try:
        with trio.fail_after(DEADLINE_S):
            await client.infer(MODEL, [ASKED[0]])
    except (trio.TooSlowError, DeadlineExceeded) as error:
        took_ms = (time.perf_counter() - began_s) * 1e3
        print(f"\n{heading('A deadline that cannot be met')}")
        print(f"  trio.fail_after({DEADLINE_S}): {type(error).__name__} after {took_ms:.1f} ms")
    else:
        raise WrongResult(f"an embedding within {DEADLINE_S * 1e3:g} ms, which this model has never done")


async def _measure(client: Client, texts: Sequence[str]) -> None:
    """Sends questions as people would, one a request, repetitions included."""
    print(f"\n{heading('Requests of one question each')}")
    few = texts[: len(texts) // 5]
    loads = [await measure(client, MODEL, few, in_flight=1, name=f"1 at a time, {len(few):,} questions")]
    for in_flight in (8, 32):
        name = f"{in_flight} at a time, {len(texts):,} questions"
        loads.append(await measure(client, MODEL, texts, in_flight=in_flight, name=name))
    print(latency_table(loads))


if __name__ == "__main__":
    sys.exit(main())
