import numpy as np
import trio

import trioserve.client
from trioserve import errors


async def main() -> None:
    x = np.ones((1, 128), np.float32)
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
        # One deadline for two requests: the second one gets what the first has left.
        with trio.fail_after(0.5):
            first = await client.infer("scale", x)
            second = await client.infer("scale", x)
        print(first.shape, second.shape)

        # An optional answer: go on without it.
        with trio.move_on_after(0.000_01) as scope:
            await client.infer("scale", x)
        print("too late" if scope.cancelled_caught else "in time")

        # Errors are classes; what is retryable says so.
        try:
            await client.infer("no_such_model", x)
        except errors.NotFound as error:
            print(error.code.name, error.retryable)


trio.run(main)
