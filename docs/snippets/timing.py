import numpy as np
import trio

import trioserve.client


async def main() -> None:
    async with trioserve.client.connect("tcp://127.0.0.1:7001") as client:
        answer = await client.infer_with_timing("scale", np.ones((1, 128), np.float32))
        print(f"round trip {answer.round_trip_us} us, in the server {answer.server_us} us")
        timing = answer.timing
        assert timing is not None
        for phase in ("parsed", "ready", "batched", "input_copied", "run", "output_copied", "sent"):
            ended_ns = getattr(timing, f"{phase}_ns")
            if ended_ns:
                print(f"{phase:14} {(ended_ns - timing.received_ns) / 1000:8.0f} us after it was received")
        print(f"in a batch of {timing.batch_rows} rows")


trio.run(main)
