"""Where requests live: the shared arena, the layout of a model's slab in it, and who holds each row."""

from trioserve.memory._arena import Arena, ArenaError
from trioserve.memory._bump import BumpRegion
from trioserve.memory._layout import Region, Slab, SlabLayout, plan_slab
from trioserve.memory._slots import FULL, SlotTable

__all__ = [
    "FULL",
    "Arena",
    "ArenaError",
    "BumpRegion",
    "Region",
    "Slab",
    "SlabLayout",
    "SlotTable",
    "plan_slab",
]
