"""The program of a server under test: python -m tests.e2e.served CONFIG_JSON MODEL..."""

from __future__ import annotations

import sys

import msgspec

from tests.e2e import models
from trioserve.config import ServerConfig
from trioserve.server import run

if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=ServerConfig)
    run([models.ALL[name]() for name in sys.argv[2:]], config=config)
