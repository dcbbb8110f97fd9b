"""Whom requests are counted for: quotas, and fair shares of what the executors can do.

A connection that names no tenant is one of its own. A quota bounds what a tenant may send whatever the load is; it is
a token bucket, checked before anything else. A share only matters near saturation: who was given more than an equal
part of the executors' time leaves room for the others (trunk reservation).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import ceil, exp
from typing import Final, NamedTuple

MEMORY_NS: Final = 200_000_000
"""In which an admitted request is forgotten."""

ACTIVE_NS: Final = 1_000_000_000
"""For so long after its last request a tenant takes part in the division."""

SEEN_NS: Final = 1e-3
"""Executor time that counts for a tenant of whom nothing is admitted: it takes part in the division all the same."""

TOLERANCE: Final = 1.1
"""How much more than an equal part a tenant has before it leaves room."""

MOST_LEFT: Final = 0.5
"""Of the SLA, what who has more leaves the others if they use their parts. With 0.2 a tenant that asks for ten times
its part doubles the others' 99th percentile; what is served in all is the same."""

USED: Final = 0.8
"""Of their parts, which others use for all of it to be left to them; of less, less."""

RECENT_NS: Final = 50_000_000
"""Nothing is left to those who have not asked for so long: they were here a moment ago, and may be gone."""

SETTLE_NS: Final = 5_000_000
SETTLE_EACH_NS: Final = 20_000
"""Least time between two looks at the shares: so much, and so much for each account."""

MAX_TENANTS: Final = 4_096
"""Names kept in mind that are not in the configuration: clients choose them."""

MAX_LOOKS: Final = 64
"""Of these, how many are looked at for one to forget."""


class Quota(NamedTuple):
    """What a tenant may send.

    Attributes:
        per_s: Requests a second in the long run; 0 for no bound.
        burst: Requests that it may send at once after a pause, at least 1.
    """

    per_s: float
    burst: int


class Bucket:
    """A token bucket.

    Args:
        quota: its size and how fast it fills.
    """

    __slots__ = ("_at_ns", "_burst", "_per_ns", "tokens")

    def __init__(self, quota: Quota) -> None:
        self._per_ns: Final = quota.per_s / 1e9
        self._burst: Final = float(quota.burst)
        self.tokens = self._burst
        self._at_ns = 0

    def take_up_to(self, count: int, now_ns: int) -> int:
        """Takes `count` tokens or as many whole ones as there are, and returns how many that was."""
        tokens = min(self._burst, self.tokens + (now_ns - self._at_ns) * self._per_ns)
        self._at_ns = now_ns
        taken = min(count, int(tokens))
        self.tokens = tokens - taken
        return taken

    def give_back(self, count: int) -> None:
        """Returns the tokens of requests that were refused for another reason."""
        self.tokens += count

    def wait_us(self) -> int:
        """How long after the last `take_up_to` there will be a token, microseconds."""
        return max(0, int((1.0 - self.tokens) / self._per_ns / 1_000))

    @property
    def full_ns(self) -> int:
        """When it is full again, if no more is taken."""
        return self._at_ns + ceil((self._burst - self.tokens) / self._per_ns)


class Account:
    """What is kept of one tenant.

    Args:
        bucket: its quota; None for none.
    """

    __slots__ = ("bucket", "last_ns", "leaves", "pending_ns", "share")

    def __init__(self, bucket: Bucket | None = None) -> None:
        self.bucket: Final = bucket
        self.pending_ns = 0.0
        """Executor time of what was admitted since the last look."""
        self.share = 0.0
        """Of the executors' time."""
        self.last_ns = 0
        """When it was last seen to have been admitted something."""
        self.leaves = 0.0
        """Of the SLA, what a request of it must have left over, for it has more than its part and others ask, too."""

    def grant(self, count: int, now_ns: int) -> int:
        """How many of `count` requests its quota allows now; they are taken off it."""
        return count if self.bucket is None else self.bucket.take_up_to(count, now_ns)

    def give_back(self, count: int) -> None:
        """Some that were granted have been refused for another reason."""
        if self.bucket is not None:
            self.bucket.give_back(count)

    @property
    def wait_us(self) -> int:
        """How long after the last `grant` its quota allows a request, microseconds."""
        return 0 if self.bucket is None else self.bucket.wait_us()

    def has_all(self, now_ns: int) -> bool:
        """Whether its quota is as that of a new account."""
        return self.bucket is None or self.bucket.full_ns <= now_ns


class Tenants:
    """The accounts of all tenants.

    Args:
        quota: of who has none of its own; None for none.
        quotas: by tenant.
        executors: what is shared.
    """

    def __init__(
        self, quota: Quota | None = None, quotas: Mapping[str, Quota] | None = None, executors: int = 1
    ) -> None:
        self._quota: Final = quota
        self._known: Final = {name: _account_of(quota) for name, quota in (quotas or {}).items()}
        self._named: Final[OrderedDict[str, Account]] = OrderedDict()
        """Tenants that are not in the configuration."""
        self._strangers: Final = self.own()
        self._active: dict[Account, None] = {}
        self._settled_ns = 0
        self.due_ns = 0
        """When the shares should be looked at again."""
        self.executors = executors
        """What is shared; whoever adds one says so here."""
        self.has_quotas: Final = any(
            account.bucket is not None for account in (self._strangers, *self._known.values())
        )

    def own(self) -> Account:
        """The account of a connection that names no tenant."""
        return _account_of(self._quota)

    def account(self, name: str, now_ns: int) -> Account:
        """The account of a tenant.

        Nobody gets a new quota by being forgotten: tenants that there is no room for share one account.
        """
        account = self._known.get(name) or self._named.get(name)
        if account is not None:
            return account
        if len(self._named) >= MAX_TENANTS and not self._forget_one(now_ns):
            return self._strangers
        account = self._named[name] = self.own()
        return account

    def _forget_one(self, now_ns: int) -> bool:
        """Makes room for a name, if it can: connections that use the forgotten one keep its account.

        Those with an unused quota go, and of them rather one that takes no part in the division.
        """
        named = self._named
        second: str | None = None
        for _ in range(min(MAX_LOOKS, len(named))):
            name, account = named.popitem(last=False)
            if account.has_all(now_ns):
                if account not in self._active:
                    return True
                second = name if second is None else second
            named[name] = account
        if second is None:
            return False
        del named[second]
        return True

    def count(self, account: Account, busy_ns: float) -> None:
        """Notes what a tenant was admitted.

        Args:
            account: of the tenant.
            busy_ns: executor time that it takes, in full batches.
        """
        if not account.pending_ns:
            self._active[account] = None
        account.pending_ns += busy_ns

    def settle(self, now_ns: int) -> None:
        """Looks at the shares, and marks who has more than its part."""
        passed_ns = max(1, now_ns - self._settled_ns)
        self._settled_ns = now_ns
        left = exp(-passed_ns / MEMORY_NS)
        share = (1 - left) / (passed_ns * self.executors)
        for account in list(self._active):
            if account.pending_ns:
                account.last_ns = now_ns
            account.share = left * account.share + share * account.pending_ns
            account.pending_ns = 0.0
            if now_ns - account.last_ns > ACTIVE_NS:
                account.share = account.leaves = 0.0
                del self._active[account]
        part = 1 / max(2, len(self._active))
        asked = sum([account.share for account in self._active if now_ns - account.last_ns < RECENT_NS])
        for account in self._active:
            others = max(0.0, asked - account.share) / (USED * (1 - part))
            account.leaves = MOST_LEFT * min(1.0, others) if account.share > TOLERANCE * part else 0.0
        self.due_ns = now_ns + SETTLE_NS + SETTLE_EACH_NS * len(self._active)

    @property
    def active(self) -> int:
        """Tenants that take part in the division."""
        return len(self._active)


def _account_of(quota: Quota | None) -> Account:
    return Account(Bucket(quota) if quota and quota.per_s else None)
