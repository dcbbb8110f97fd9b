"""Who gets in: the semaphores of rows and of bytes, classes, tenants; all from the header alone, without waiting."""

from __future__ import annotations

from ._classes import Classes
from ._gate import Gate, Permits
from ._tenants import Account, Quota, Tenants

__all__ = ["Account", "Classes", "Gate", "Permits", "Quota", "Tenants"]
