"""What the server says of itself: structured logs."""

from __future__ import annotations

from ._logging import configure_logging

__all__ = ["configure_logging"]
