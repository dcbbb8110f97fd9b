"""Shared memory: sealed anonymous arenas and the slabs of rows laid out in them."""

from trioserve.memory._arena import Arena, ArenaError
from trioserve.memory._layout import Region, Slab, SlabLayout, plan_slab

__all__ = ["Arena", "ArenaError", "Region", "Slab", "SlabLayout", "plan_slab"]
