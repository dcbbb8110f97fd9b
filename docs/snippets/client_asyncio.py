import asyncio

import anyio
import numpy as np

import trioserve.client


async def main() -> None:
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
        x = np.ones((1, 128), np.float32)
        with anyio.fail_after(0.5):
            y = await client.infer("scale", x)
        print(y.shape)


asyncio.run(main())
