import numpy as np
import trio

import trioserve.client


async def main() -> None:
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
        x = np.random.default_rng(0).random((5000, 128), np.float32)
        with trio.fail_after(10):
            result = await client.infer_many("scale", x)
        print(f"{np.count_nonzero(result.ok)} of {len(x)} rows have a result")
        print(result.output.shape)
        for failure in result.failures:
            print(f"rows {failure.first} to {failure.first + failure.count - 1}: {failure.error}")


trio.run(main)
