"""The four classes of a request: which goes first, and why none starves.

A class is a rank, and a rank is time: a request of rank r is served as if its deadline were r default deadlines later.
So one of a lesser class that has waited long enough still overtakes a new one of a better class. And a class that gets
less than a small share of what the model can do has rank 0 until it has that share, while the others leave it room.

Who is overtaken must be admitted with that in mind: else more is promised than can be kept. So the better classes' part
of the executors' time is taken off what a lesser class is promised. What is promised to it nevertheless is kept against
its own class and lesser ones only: a better one is admitted if it can be in time itself.
"""

from __future__ import annotations

from math import exp
from typing import Final, NamedTuple

from ._rule import MOST_OVERTAKING

RANKS: Final = (1, 0, 2, 3)
"""By the class bits of the wire: CRITICAL, which is the default, CRITICAL_PLUS, SHEDDABLE_PLUS, SHEDDABLE."""

FLOOR_SHARE: Final = 0.05
"""Of the executors' time: below it a class goes before all others."""

MEMORY_NS: Final = 200_000_000
"""In which an admitted request is forgotten."""

SETTLE_NS: Final = 10_000_000
"""Least time between two looks at the shares."""

TRACE: Final = 0.001
"""Offered share from which a class counts as in use."""

NEAR_SHARE: Final = 0.75
"""Of the executors' time: while less is asked for in all, there is room for every class, and none leaves any."""


CLASS_SHARE: Final = 0.2
"""Of the SLA, what a request must have left over whose class leaves room for another one."""


class Standing(NamedTuple):
    """How a request stands to those of other classes and tenants."""

    left_share: float = 0.0
    """Of the SLA, what it must have left over for them: because its tenant has more than its share, or its class
    yields."""
    overtaking: float = 0.0
    """Part of the capacity that better classes ask for."""
    lesser_ns: int = 2**62
    """Rows whose keys are further behind their deadlines are of lesser classes: no promise to them is kept against
    this one."""
    overrules: bool = False
    """Whether lesser classes are in use."""


class Classes:
    """Ranks of the classes of one model.

    Args:
        sla_ns: its default deadline.
        executors: how many run it.
    """

    __slots__ = (
        "_executors",
        "_sla_ns",
        "due_ns",
        "natural_ns",
        "offered",
        "offered_ns",
        "offsets_ns",
        "overrules",
        "overtaking",
        "pending_ns",
        "ranks",
        "settled_ns",
        "shares",
        "yields",
    )

    def __init__(self, sla_ns: int, executors: int = 1) -> None:
        self._sla_ns: Final = sla_ns
        self._executors: Final = executors
        self.pending_ns = [0.0] * len(RANKS)
        """Executor time of what was admitted since the last look, by class bits; whoever admits adds to this."""
        self.offered_ns = [0.0] * len(RANKS)
        """The same of what was asked for."""
        self.offered = [0.0] * len(RANKS)
        """Part of the executors' time that is asked for."""
        self.overtaking = [0.0] * len(RANKS)
        """The part that is asked for by better classes, which overtake."""
        self.shares = [0.0] * len(RANKS)
        """Of the executors' time."""
        self.ranks = list(RANKS)
        """At present."""
        self.offsets_ns = [rank_offset_ns(rank, sla_ns) for rank in RANKS]
        """How far behind its deadline the key of a request is that arrives now."""
        self.natural_ns: Final = [rank_offset_ns(rank, sla_ns) for rank in RANKS]
        """The same where no class starves."""
        self.yields = [False] * len(RANKS)
        """Whether a class leaves room for a better one, which is in use too, while both ask for nearly all there is."""
        self.overrules = [False] * len(RANKS)
        """Whether a lesser class is in use, whose requests are put off for one of this class even if they miss their
        deadlines by it."""
        self.settled_ns = 0
        self.due_ns = 0
        """When the shares should be looked at again."""

    def standing(self, klass: int, tenant_leaves: float) -> Standing:
        """That of a request of a class, as it was at the last look.

        Args:
            klass: class bits of the wire.
            tenant_leaves: of the SLA, what its tenant leaves the others.
        """
        left_share = max(tenant_leaves, CLASS_SHARE if self.yields[klass] else 0.0)
        return Standing(left_share, self.overtaking[klass], self.natural_ns[klass], self.overrules[klass])

    def load(self, now_ns: int) -> float:
        """Part of the executors' time that is asked for in all, as it was at the last look and forgotten since."""
        return sum(self.offered) * exp(-max(0, now_ns - self.settled_ns) / MEMORY_NS)

    def settle(self, now_ns: int, beside: float = 0.0) -> None:
        """Looks at the shares and gives every class its rank.

        Args:
            now_ns: the time of the event.
            beside: part of the executors' time that is asked for of other models.
        """
        passed_ns = max(1, now_ns - self.settled_ns)
        self.settled_ns = now_ns
        self.due_ns = now_ns + SETTLE_NS
        left = exp(-passed_ns / MEMORY_NS)
        share = (1 - left) / (passed_ns * self._executors)
        shares, offered = self.shares, self.offered
        for klass in range(len(RANKS)):
            shares[klass] = left * shares[klass] + share * self.pending_ns[klass]
            offered[klass] = left * offered[klass] + share * self.offered_ns[klass]
            self.pending_ns[klass] = self.offered_ns[klass] = 0.0
        total = sum(shares)
        # Whoever is alone needs no help: its rank is the same for all that wait.
        hungry = [share < FLOOR_SHARE <= total - share for share in shares]
        needy = any(starved and asked > TRACE for starved, asked in zip(hungry, offered, strict=True))
        for klass, rank in enumerate(RANKS):
            starved = hungry[klass]
            self.ranks[klass] = 0 if starved else rank
            self.offsets_ns[klass] = rank_offset_ns(self.ranks[klass], self._sla_ns)
            before = sum([offered[other] for other in range(len(RANKS)) if RANKS[other] < rank])
            better = 0.0 if starved else before
            # What lesser classes ask for is no reason to leave room: they are shed first.
            is_near = before + offered[klass] + beside >= NEAR_SHARE
            self.yields[klass] = is_near and (better > TRACE or (needy and not starved))
            self.overrules[klass] = sum(offered) - before - offered[klass] > TRACE
            self.overtaking[klass] = min(MOST_OVERTAKING, better)


def rank_offset_ns(rank: int, sla_ns: int) -> int:
    """How far behind its deadline a rank's key is.

    That of the default class is its deadline itself, so that keys of models with other default deadlines compare.
    """
    return (rank - RANKS[0]) * sla_ns
