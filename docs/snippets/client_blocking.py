import numpy as np

from trioserve.client import sync

with sync.connect("tcp://127.0.0.1:7001") as client:
    y = client.infer("scale", np.ones((1, 128), np.float32), timeout_s=0.5)
    print(y.shape)
