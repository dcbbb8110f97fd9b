import numpy as np
import trio

import trioserve.client
from trioserve import errors
from trioserve.client import RequestClass, RetryPolicy


async def main() -> None:
    x = np.ones((1, 128), np.float32)
    patience = RetryPolicy(max_attempts=1)  # this program has its own idea of what to do instead
    async with trioserve.client.connect("tcp://127.0.0.1:7001", tenant="reports", retry=patience) as client:
        try:
            with trio.fail_after(0.25):
                result = await client.infer("scale", x, priority=RequestClass.SHEDDABLE)
            print(result.shape)
        except errors.ResourceExhausted as error:
            print(error.code.name, "again in", error.retry_after_s, "s")
        except trio.TooSlowError:
            print("too late")


trio.run(main)
