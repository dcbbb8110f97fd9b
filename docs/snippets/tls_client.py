import os

import numpy as np

from trioserve.client import client_context
from trioserve.client.sync import connect

token = os.environ.get("TRIOSERVE_TOKEN")
with connect("tls://localhost:7001", token=token, tls=client_context("ca.pem")) as client:
    print(client.infer("scale", np.ones(4, np.float32)))
