"""When to try again: the retry budget of a client, the attempts of a call, the pauses between connects.

A retry helps one caller and burdens a server that may be failing because of its load. So a client has a budget, as
gRPC's retry throttling: each failure takes one token of ten, each success gives a tenth back, and only above half of
the tokens is anything sent again. A storm of retries therefore stops after five failures, and with one failure in
eleven successes the budget never runs dry.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from trioserve.errors import TrioserveError, WorkerLost

from ._failures import ConnectFailed, NotSent, copy_of

_MAX_UNSENT = 8
"""How often a request that no server took is sent elsewhere: bounds a call against a server that always drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What a client does about errors that the server calls retryable.

    Inference is taken to be repeatable: a request whose connection broke may run twice. One whose worker died is not
    sent again, although the server calls that retryable: it may be what killed the worker, and would kill the next.
    """

    max_attempts: int = 4
    """How often a request is sent at most, the first time included; 1 turns retries off."""

    first_delay_s: float = 0.02
    """Upper bound of the pause before the first retry, in seconds; it doubles with each one. The pause is drawn
    from the upper half of its bound, so that clients that failed together do not come back together."""

    max_delay_s: float = 1.0
    """Largest pause, in seconds. A server's own `retry_after` is waited out in full, however long."""

    budget_tokens: float = 10.0
    """Size of the client's budget; retries stop at half of it."""

    refund_tokens: float = 0.1
    """What a success gives back."""

    connect_timeout_s: float = 5.0
    """How long one attempt to connect may take, in seconds; a caller's earlier deadline ends it sooner."""

    def __post_init__(self) -> None:
        """Refuse values that could not work.

        Raises:
            ValueError: a value is out of range; the message names it.
        """
        for name in ("first_delay_s", "max_delay_s", "budget_tokens", "refund_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if not self.connect_timeout_s > 0:
            raise ValueError(f"connect_timeout_s must be above 0, not {self.connect_timeout_s}")

    def pause_s(self, failures: int, uniform: Callable[[], float]) -> float:
        """Return the pause after the `failures`-th failure in a row, in seconds; `uniform` draws from [0, 1)."""
        bound_s = min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.max_delay_s)
        return bound_s * (0.5 + 0.5 * uniform())


class RetryBudget:
    """The tokens that all calls of one client share."""

    __slots__ = ("_policy", "_tokens", "_uniform")

    def __init__(self, policy: RetryPolicy, uniform: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._tokens = policy.budget_tokens
        self._uniform = uniform

    @property
    def tokens(self) -> float:
        """What is left, 0 to `RetryPolicy.budget_tokens`."""
        return self._tokens

    def succeeded(self) -> None:
        """Count a call that got its result."""
        self._tokens = min(self._policy.budget_tokens, self._tokens + self._policy.refund_tokens)

    def attempts(self) -> Attempts:
        """Return the record of a new call."""
        return Attempts(self._policy, self, self._uniform)

    def spend(self) -> bool:
        """Count a failure; returns whether the budget allows to try again."""
        allowed = self._tokens > self._policy.budget_tokens / 2
        self._tokens = max(0.0, self._tokens - 1)
        return allowed


class Attempts:
    """How often one call has been tried, and whether it may be tried again."""

    __slots__ = ("_budget", "_failures", "_policy", "_uniform", "_unsent")

    def __init__(self, policy: RetryPolicy, budget: RetryBudget, uniform: Callable[[], float]) -> None:
        self._policy = policy
        self._budget = budget
        self._uniform = uniform
        self._failures = 0
        self._unsent = 0

    @property
    def retrying(self) -> bool:
        """Whether a server may have seen an earlier attempt; then flag RETRY is due."""
        return self._failures > 0

    def pause_s(self, error: TrioserveError, now_s: float, deadline_s: float) -> float | None:
        """Decide about a failed attempt.

        Args:
            error: How it failed.
            now_s: The clock now.
            deadline_s: The caller's deadline on the same clock; infinity for none.

        Returns:
            Seconds to wait before the next attempt; None: do not try again, the error is the call's outcome.
        """
        if isinstance(error, NotSent):
            self._unsent += 1
            if self._unsent > _MAX_UNSENT:
                return None
            pause_s = self._policy.pause_s(self._unsent - 1, self._uniform) if self._unsent > 1 else 0.0
            return pause_s if now_s + pause_s < deadline_s else None
        if not error.retryable or isinstance(error, WorkerLost):
            return None
        self._failures += 1
        if not self._budget.spend() or self._failures >= self._policy.max_attempts:
            return None
        # A server that says when has already spread its clients out; 0 only says "you may".
        pause_s = error.retry_after_s or self._policy.pause_s(self._failures, self._uniform)
        return pause_s if now_s + pause_s < deadline_s else None


class Reconnector:
    """Makes callers that need a connection at the same time share one attempt, and spaces the attempts out.

    A caller takes a `ticket` before it waits for its turn to connect. If an attempt that began after that has failed
    meanwhile, its failure is the answer (`verdict`): a hundred callers do not dial a dead server a hundred times.
    """

    __slots__ = ("_earliest_s", "_error", "_failed", "_failures", "_policy", "_uniform")

    def __init__(self, policy: RetryPolicy, uniform: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._uniform = uniform
        self._failures = 0
        self._failed = 0
        self._earliest_s = float("-inf")
        self._error: ConnectFailed | None = None

    def ticket(self) -> int:
        """Return a number for `verdict`."""
        return self._failed

    def verdict(self, ticket: int) -> ConnectFailed | None:
        """Return the failure of an attempt that ended since `ticket` was taken, if there was one."""
        if self._failed == ticket or self._error is None:
            return None
        return copy_of(self._error)

    def pause_s(self, now_s: float) -> float:
        """Return how long to wait before the next attempt, in seconds."""
        return max(0.0, self._earliest_s - now_s)

    def failed(self, error: ConnectFailed, now_s: float) -> None:
        """Count a failed attempt."""
        self._failed += 1
        self._failures += 1
        self._error = error
        self._earliest_s = now_s + self._policy.pause_s(self._failures, self._uniform)

    def succeeded(self) -> None:
        """Count a connection that came to be."""
        self._failures = 0
        self._error = None
        self._earliest_s = float("-inf")
