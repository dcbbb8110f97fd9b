"""Clients that send their next request when they have the reply to the last: when they will be back.

A batcher that takes whatever waits falls into two alternating groups of such clients, each waiting for the other's
batch. Knowing that the clients of the last batch are about to return, it waits for them and serves all in one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

GAIN: Final = 1 / 8
"""Weight of one return: a client is known after some ten of them."""

LIKELY: Final = 0.8
"""Least share of replies that a client came back after, for it to be waited for."""

STEADY: Final = 0.15
"""Most deviation of the time it takes, as a part of the fixed cost that a common batch saves."""

GRACE_NS: Final = 50_000
PATIENCE: Final = 3.0
"""Mean deviations after which a client is not waited for any more."""

LEAST_ALPHA_NS: Final = 1_000_000
"""Fixed cost below which no wait pays. Timers are late by 50 us and a turn costs 40: at 0.2 ms a batch (w1) predicting
took a sixth of the server's time, and the waits a third of the throughput."""

MAX_AWAY: Final = 256
"""Most clients that are kept in mind as about to return."""


class Returns:
    """Predicted returns of sessions that have one request outstanding. Columns over the sessions' indices.

    Args:
        sessions: how many there may be; more room is made as needed.
    """

    def __init__(self, sessions: int = 64) -> None:
        self._replied_ns: NDArray[np.int64] = np.zeros(sessions, np.int64)
        """When its only request was answered; 0 while one is outstanding or nothing is known."""
        self._mean_ns: NDArray[np.float64] = np.zeros(sessions)
        self._deviation_ns: NDArray[np.float64] = np.zeros(sessions)
        self._likely: NDArray[np.float64] = np.zeros(sessions)
        self._away: dict[int, tuple[int, int, float]] = {}
        """Session -> when it is expected, when it is given up, and how likely it comes."""
        self.active = True
        self._steady_ns = 0.0

    def tune(self, alpha_ns: float) -> None:
        """Says what a common batch saves; with too little to gain nothing is predicted."""
        self.active = alpha_ns >= LEAST_ALPHA_NS
        self._steady_ns = STEADY * alpha_ns
        if not self.active:
            self._away.clear()

    # ---------------------------------------------------------------- events

    def arrived(self, session: int, now_ns: int) -> None:
        """A session that had nothing outstanding has sent a request."""
        if not self.active or session >= len(self._replied_ns):
            return
        replied_ns = int(self._replied_ns[session])
        self._away.pop(session, None)
        if not replied_ns:
            return
        self._replied_ns[session] = 0
        took_ns = now_ns - replied_ns
        mean_ns = float(self._mean_ns[session])
        if not mean_ns:
            self._mean_ns[session] = max(1, took_ns)
            self._deviation_ns[session] = took_ns / 2
            self._likely[session] = LIKELY / 2
            return
        deviation_ns = float(self._deviation_ns[session])
        known_ns = mean_ns + PATIENCE * deviation_ns + GRACE_NS
        in_time = took_ns <= known_ns
        self._likely[session] += GAIN * (in_time - float(self._likely[session]))
        sample_ns = min(took_ns, known_ns)
        self._mean_ns[session] = mean_ns + GAIN * (sample_ns - mean_ns)
        self._deviation_ns[session] = deviation_ns + GAIN * (abs(sample_ns - mean_ns) - deviation_ns)

    def arrived_many(self, sessions: NDArray[np.uint32], now_ns: int) -> None:
        """`arrived` for several distinct sessions at once."""
        if not self.active:
            return
        known = sessions[sessions < len(self._replied_ns)]
        if self._away:
            for session in known.tolist():
                self._away.pop(session, None)
        known = known[self._replied_ns[known] > 0]
        took_ns = now_ns - self._replied_ns[known]
        self._replied_ns[known] = 0
        mean_ns, deviation_ns = self._mean_ns[known], self._deviation_ns[known]
        is_new = mean_ns == 0
        most_ns = mean_ns + PATIENCE * deviation_ns + GRACE_NS
        sample_ns = np.minimum(took_ns, most_ns)
        away_ns = np.abs(sample_ns - mean_ns)
        self._likely[known] = np.where(
            is_new, LIKELY / 2, self._likely[known] + GAIN * ((took_ns <= most_ns) - self._likely[known])
        )
        self._mean_ns[known] = np.where(
            is_new, np.maximum(took_ns, 1), mean_ns + GAIN * (sample_ns - mean_ns)
        )
        self._deviation_ns[known] = np.where(
            is_new, took_ns / 2, deviation_ns + GAIN * (away_ns - deviation_ns)
        )

    def replied(self, session: int, now_ns: int) -> None:
        """A session has the reply to its only request."""
        if not self.active:
            return
        if session >= len(self._replied_ns):
            self._grow(session)
        self._replied_ns[session] = now_ns
        likely, deviation_ns = float(self._likely[session]), float(self._deviation_ns[session])
        if likely > LIKELY and deviation_ns < self._steady_ns:
            self._expect(session, float(self._mean_ns[session]), deviation_ns, likely, now_ns)

    def replied_many(self, sessions: NDArray[np.uint32], now_ns: int) -> None:
        """`replied` for several distinct sessions at once."""
        if not self.active or not sessions.size:
            return
        last = int(sessions.max())
        if last >= len(self._replied_ns):
            self._grow(last)
        self._replied_ns[sessions] = now_ns
        expected = sessions[
            (self._likely[sessions] > LIKELY) & (self._deviation_ns[sessions] < self._steady_ns)
        ]
        columns = (self._mean_ns[expected], self._deviation_ns[expected], self._likely[expected])
        rows = zip(expected.tolist(), *(column.tolist() for column in columns), strict=True)
        for session, mean_ns, deviation_ns, likely in rows:
            self._expect(session, mean_ns, deviation_ns, likely, now_ns)

    def closed(self, session: int) -> None:
        """A session is gone; its index will be another's."""
        if session < len(self._replied_ns):
            self._replied_ns[session] = 0
            self._mean_ns[session] = self._deviation_ns[session] = self._likely[session] = 0.0
        self._away.pop(session, None)

    def _expect(self, session: int, mean_ns: float, deviation_ns: float, likely: float, now_ns: int) -> None:
        if len(self._away) >= MAX_AWAY:
            return
        eta_ns = now_ns + int(mean_ns + deviation_ns)
        until_ns = now_ns + int(mean_ns + PATIENCE * deviation_ns) + GRACE_NS
        self._away[session] = eta_ns, until_ns, likely

    def _grow(self, session: int) -> None:
        more = max(session + 1, 2 * len(self._replied_ns)) - len(self._replied_ns)
        self._replied_ns = np.concatenate([self._replied_ns, np.zeros(more, np.int64)])
        self._mean_ns = np.concatenate([self._mean_ns, np.zeros(more)])
        self._deviation_ns = np.concatenate([self._deviation_ns, np.zeros(more)])
        self._likely = np.concatenate([self._likely, np.zeros(more)])

    # ---------------------------------------------------------------- the prediction

    def etas(self, now_ns: int) -> list[tuple[int, float]]:
        """When those who are away are expected, soonest first, and how likely; the overdue are given up."""
        if not self._away:
            return []
        lost = [session for session, (_, until_ns, _) in self._away.items() if until_ns < now_ns]
        for session in lost:
            del self._away[session]
        return sorted((eta_ns, likely) for eta_ns, _, likely in self._away.values())
