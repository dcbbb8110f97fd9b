"""The program of a server under test: python -m tests.e2e.served CONFIG_JSON MODEL...

A model is a name in `tests.e2e.models.ALL`, or the path of a model folder.
"""

from __future__ import annotations

import sys

import msgspec

from tests.e2e import models
from trioserve.config import ServerConfig, load_model_config
from trioserve.server import run

if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=ServerConfig)
    run(
        [load_model_config(name) if "/" in name else models.ALL[name]() for name in sys.argv[2:]],
        config=config,
    )
