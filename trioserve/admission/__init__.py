"""Who gets in: permits for rows and bytes, classes, tenants, the rule; all from the header, without waiting."""

from __future__ import annotations

from ._classes import Classes, Standing, rank_offset_ns
from ._gate import Gate, Permits
from ._rule import Rule, Situation, Verdict
from ._tenants import SEEN_NS, Account, Quota, Tenants

__all__ = [
    "SEEN_NS",
    "Account",
    "Classes",
    "Gate",
    "Permits",
    "Quota",
    "Rule",
    "Situation",
    "Standing",
    "Tenants",
    "Verdict",
    "rank_offset_ns",
]
