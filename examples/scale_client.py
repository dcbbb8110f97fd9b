"""Asks the model of `scale.py`: `python examples/scale_client.py [URL]`."""

import sys

import numpy as np
import trio

import trioserve.client


async def main(url: str) -> None:
    """Sends one request, then a thousand as one column."""
    async with trioserve.client.connect(url) as client:
        x = np.arange(128, dtype=np.float32).reshape(1, 128)
        with trio.fail_after(0.05):  # the deadline, here and in the server
            y = await client.infer("scale", x)
        print("one:", *y[0, :4], "...")

        many = np.random.default_rng(1).random((1000, 128), np.float32)
        with trio.fail_after(5):
            result = await client.infer_many("scale", many)
        result.raise_for_errors()
        print("a thousand:", result.output.shape, "all right:", np.allclose(result.output, many[:, :64] * 2))


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:7001")
