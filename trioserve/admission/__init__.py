"""Who gets in: the semaphores of rows and of bytes, and the rule, checked from the header alone, without waiting."""

from __future__ import annotations

from ._gate import Gate, Permits
from ._rule import Rule, Situation, Verdict

__all__ = ["Gate", "Permits", "Rule", "Situation", "Verdict"]
