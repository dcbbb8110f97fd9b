"""Clients that do what no well-meaning client does: each tries to get around one check."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.harness import ServerProcess, Wire, infer
from trioserve_protocol import (
    ErrorCode,
    ResultMany,
    Tag,
    tlv,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    with server.connect() as wire:
        yield wire


def test_what_an_infer_many_may_an_infer_of_the_same_shape_may_not(wire: Wire) -> None:
    rows = np.ones((20, 65_536), np.float32)
    meta = tlv(Tag.MODEL, "blob")
    wire.send(infer(1, rows, handle=0, rows=20, meta=meta, many=True))
    left = 20
    while left:
        event = wire.receive()
        assert isinstance(event, ResultMany), event
        left -= event.rows
    wire.send(infer(100, rows, handle=0, rows=20, meta=meta))
    wire.expect_error(ErrorCode.TOO_MANY_ROWS, 100)
