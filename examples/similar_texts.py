"""Which of some texts are alike? `make serve`, then `python examples/similar_texts.py [URL]`."""

import sys

import numpy as np
import trio

import trioserve.client

TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]


async def main(url: str) -> None:
    """Embeds the texts and prints the cosine of each pair."""
    async with trioserve.client.connect(url) as client:
        with trio.fail_after(2):
            result = await client.infer_many("minilm", TEXTS)
        result.raise_for_errors()
        cosines = result.output @ result.output.T
        for first, second in zip(*np.triu_indices(len(TEXTS), 1), strict=True):
            print(f"{cosines[first, second]:.4f}  {TEXTS[first]}  {TEXTS[second]}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:7001")
