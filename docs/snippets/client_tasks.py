import numpy as np
import trio

import trioserve.client


async def ask(client: trioserve.client.Client, value: float) -> None:
    with trio.fail_after(0.5):
        y = await client.infer("scale", np.full((1, 128), value, np.float32))
    print(value, y[0, 0])


async def main() -> None:
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, client, float(number))


trio.run(main)
