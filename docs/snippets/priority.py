import numpy as np
import trio

import trioserve.client
from trioserve import errors
from trioserve.client import RequestClass, RetryPolicy


async def main() -> None:
    x = np.ones((1, 128), np.float32)
    patience = RetryPolicy(max_attempts=1)  # this program has its own idea of what to do instead
    async with trioserve.client.connect("tcp://127.0.0.1:7001", tenant="reports", retry=patience) as client:
        with trio.move_on_after(0.25) as scope:
            try:
                result = await client.infer("scale", x, priority=RequestClass.SHEDDABLE)
                print(result.shape)
            except errors.ResourceExhausted as error:
                print(error.code.name, "again in", error.retry_after_s, "s")
        if scope.cancelled_caught:
            print("too late")


trio.run(main)
