"""Where requests live: the shared arena, the layout of a model's slab in it, and who holds each row."""

from trioserve.memory._arena import Arena, ArenaError
from trioserve.memory._layout import Region, Slab, SlabLayout, plan_slab

__all__ = ["Arena", "ArenaError", "Region", "Slab", "SlabLayout", "plan_slab"]
