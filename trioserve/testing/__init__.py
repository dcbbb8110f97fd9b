"""What tests of models and backends are written with; shipped, so that whoever extends trioserve can use it too.

`BackendContract` is subclassed in a test module of pytest's, but does not import pytest.
"""

from trioserve.testing._contract import BackendContract
from trioserve.testing._fake_backend import FakeBackend, FakeModelError

__all__ = ["BackendContract", "FakeBackend", "FakeModelError"]
