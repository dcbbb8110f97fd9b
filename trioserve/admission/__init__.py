"""Who gets in: the semaphores of rows and of bytes, checked from the header alone, without waiting."""

from __future__ import annotations

from ._gate import Gate, Permits

__all__ = ["Gate", "Permits"]
