"""What tests of models and backends are written with; shipped, so that whoever extends trioserve can use it too.

`BackendContract` is subclassed in a test module of pytest's, but does not import pytest. A `ConnectionGroup` over a
`MemoryNetwork`, with a `MemoryWorker`, is a server without sockets, processes and real time. `simulate` is the
scheduler alone, in virtual time.
"""

from trioserve.testing._arrivals import ClosedLoop, Trace, bursty, constant, poisson
from trioserve.testing._contract import BackendContract
from trioserve.testing._fake_backend import FakeBackend, FakeModelError
from trioserve.testing._memory_network import MemoryClient, MemoryNetwork, MemorySocket
from trioserve.testing._memory_worker import MemoryWorker
from trioserve.testing._simulate import simulate
from trioserve.testing._simulation import BatchRecord, Simulation

__all__ = [
    "BackendContract",
    "BatchRecord",
    "ClosedLoop",
    "FakeBackend",
    "FakeModelError",
    "MemoryClient",
    "MemoryNetwork",
    "MemorySocket",
    "MemoryWorker",
    "Simulation",
    "Trace",
    "bursty",
    "constant",
    "poisson",
    "simulate",
]
