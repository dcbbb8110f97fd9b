"""One server for all tests of the room that need no configuration of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.harness import ServerProcess, serving


@pytest.fixture(scope="session")
def shared_server() -> Iterator[ServerProcess]:
    """A server with every model that cannot harm it."""
    with serving("echo", "scale", "fragile", "slow", "image", "blob", "mixed") as server:
        yield server


@pytest.fixture
def server(shared_server: ServerProcess) -> Iterator[ServerProcess]:
    """The shared server, which must be at rest after the test."""
    yield shared_server
    shared_server.assert_at_rest()
