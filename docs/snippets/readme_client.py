import numpy as np
import trio

import trioserve.client


async def main():
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
        with trio.fail_after(0.05):  # 50 ms, kept by both ends
            y = await client.infer("scale", np.ones((1, 128), np.float32))
        print(y.shape)


trio.run(main)
