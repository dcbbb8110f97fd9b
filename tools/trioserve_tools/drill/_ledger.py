"""Every request of a drill and what became of it, as columns by request id."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trioserve_protocol import ErrorCode, code_of

Rids = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]

UNANSWERED: Final = -1
_PRIME: Final = np.uint64(40_503)
_WIDTH: Final = 128


def input_rows(rids: Rids) -> Floats:
    """The input of each request, different in every number: f32[k, 128], whole numbers below 2^16."""
    mixed = (rids[:, None] * _PRIME + np.arange(_WIDTH, dtype=np.uint64) * rids[:, None]) % np.uint64(65_536)
    rows = mixed.astype(np.float32)
    # The id itself, in two numbers that float32 holds exactly.
    rows[:, 0] = (rids % np.uint64(65_536)).astype(np.float32)
    rows[:, 1] = (rids // np.uint64(65_536)).astype(np.float32)
    return rows


def output_rows(rids: Rids) -> Floats:
    """What the model `double` answers to them: f32[k, 64]."""
    return input_rows(rids)[:, : _WIDTH // 2] * np.float32(2)


def status_name(status: int) -> str:
    """Name of a status; a number that is none of the registry's stays a number."""
    if status == UNANSWERED:
        return "unanswered"
    code = code_of(status)
    return code.name if code is not None and code == status else f"{status:#06x}"


class Ledger:
    """The books. Ids are given out once, over all links.

    Args:
        capacity: Requests there can be.
    """

    def __init__(self, capacity: int) -> None:
        self._next: int = 1
        size = capacity + 1
        self.links: Final = np.full(size, -1, np.int32)
        """Which link a request was sent on."""
        self.order: Final = np.zeros(size, np.int64)
        """How many requests its link had sent when it had sent this one."""
        self.sent_ns: Final = np.zeros(size, np.int64)
        self.ended_ns: Final = np.zeros(size, np.int64)
        self.status: Final = np.full(size, UNANSWERED, np.int32)
        self.ends: Final = np.zeros(size, np.int32)
        """Terminal frames that came for a request."""
        self.wrong = 0
        """Results with a payload of another request, and replies to ids that are not of their link."""

    @property
    def room(self) -> int:
        """Requests that can still be issued."""
        return len(self.status) - self._next

    def issue(self, count: int, link: int, sent_before: int, now_ns: int) -> Rids:
        """Gives out ids.

        Args:
            count: How many.
            link: Where they are sent.
            sent_before: Requests that the link has sent before.
            now_ns: When.
        """
        first, self._next = self._next, self._next + count
        self.links[first : self._next] = link
        self.order[first : self._next] = sent_before + 1 + np.arange(count)
        self.sent_ns[first : self._next] = now_ns
        return np.arange(first, self._next, dtype=np.uint64)

    def result(self, link: int, rids: Rids, payload: npt.NDArray[np.uint8], now_ns: int) -> None:
        """Enters results: u8[k, 256]."""
        known = self._end(link, rids, ErrorCode.OK, now_ns)
        got = np.ascontiguousarray(payload[:, :256]).view(np.float32)
        self.wrong += int((got[known] != output_rows(rids[known])).any(axis=1).sum())

    def error(self, link: int, first: int, count: int, status: int, now_ns: int) -> None:
        """Enters an error that ends consecutive ids."""
        self._end(link, np.arange(first, first + count, dtype=np.uint64), status, now_ns)

    def _end(self, link: int, rids: Rids, status: int, now_ns: int) -> npt.NDArray[np.bool_]:
        """Returns which of the ids are of that link."""
        known = rids < self._next
        known[known] = self.links[rids[known]] == link
        self.wrong += int((~known).sum())
        mine = rids[known]
        np.add.at(self.ends, mine, 1)
        self.status[mine] = status
        self.ended_ns[mine] = now_ns
        return known

    # ---------------------------------------------------------------- the books, read

    @property
    def issued(self) -> slice:
        """Index of everything that was sent."""
        return slice(1, self._next)

    @property
    def unanswered(self) -> int:
        """Requests without a terminal frame."""
        return int((self.ends[self.issued] == 0).sum())

    @property
    def duplicates(self) -> int:
        """Terminal frames beyond the first of a request."""
        return int((self.ends[self.issued] - 1).clip(0).sum())

    def count(self, status: int) -> int:
        """Requests that ended with a status."""
        return int((self.status[self.issued] == status).sum())

    def statuses(self) -> dict[str, int]:
        """How many requests ended with each status, by its name."""
        values, counts = np.unique(self.status[self.issued], return_counts=True)
        return dict(zip(map(status_name, values.tolist()), counts.tolist(), strict=True))
