"""A queue in order of key for the simulator: two lists, one entry a row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

COMPACT_ROWS: Final = 4_096


class SimulatedQueue:
    """What is ready to run, in order of key; rows of one key in order of arrival.

    Args:
        deadline_ns: column: deadlines of the requests.
    """

    def __init__(self, deadline_ns: list[int]) -> None:
        self._deadline_ns: Final = deadline_ns
        self._keys: list[int] = []
        self._ids: list[int] = []
        self._taken = 0
        self.rows = 0
        self._is_mixed = False
        """Whether there are keys that are no deadlines."""

    @property
    def head(self) -> int:
        """The request that is served next; the queue must not be empty."""
        return self._ids[self._taken]

    def outlook(self, limit: int) -> tuple[int, bool]:
        """Rows of the next batch of at most `limit`, and whether it has no room for more."""
        return min(self.rows, limit), self.rows >= limit

    def head_deadline_ns(self, rows: int) -> int:
        """The earliest deadline among the first so many rows; the queue must not be empty."""
        first = self._taken
        if not self._is_mixed:
            return self._keys[first]
        deadline_ns = self._deadline_ns
        return min([deadline_ns[request] for request in self._ids[first : first + rows]])

    floor_deadline_ns = head_deadline_ns

    def expired(self, now_ns: int) -> list[int]:
        """Takes all out whose deadline has passed, wherever they wait."""
        first, deadline_ns = self._taken, self._deadline_ns
        late = [request for request in self._ids[first:] if deadline_ns[request] <= now_ns]
        if late:
            waiting = zip(self._ids[first:], self._keys[first:], strict=True)
            left = [(request, key_ns) for request, key_ns in waiting if deadline_ns[request] > now_ns]
            self._ids = [request for request, _ in left]
            self._keys = [key_ns for _, key_ns in left]
            self._taken, self.rows = 0, len(left)
        return late

    def oldest_ready_ns(self, rows: int, ready_ns: Sequence[int]) -> int:
        """When the first of the first so many rows became ready."""
        first = self._taken
        return min([ready_ns[request] for request in self._ids[first : first + rows]])

    def push(self, request: int, key_ns: int) -> None:
        """Enters a request."""
        keys = self._keys
        self.rows += 1
        if key_ns != self._deadline_ns[request]:
            self._is_mixed = True
        if not keys or key_ns >= keys[-1]:
            keys.append(key_ns)
            self._ids.append(request)
            return
        place = bisect_right(keys, key_ns, self._taken)
        keys.insert(place, key_ns)
        self._ids.insert(place, request)

    def take(self, rows: int) -> list[int]:
        """Takes the first requests off the queue."""
        first = self._taken
        end = self._taken = first + rows
        taken = self._ids[first:end]
        self.rows -= len(taken)
        if end > COMPACT_ROWS or not self.rows:
            del self._ids[:end], self._keys[:end]
            self._taken = 0
        return taken

    def ahead(self, key_ns: int) -> int:
        """Requests whose key is not behind `key_ns`."""
        keys = self._keys
        if not self.rows or key_ns >= keys[-1]:
            return self.rows
        return bisect_right(keys, key_ns, self._taken) - self._taken

    def deadlines(self, rows: int) -> Sequence[int]:
        """Deadlines of the first so many requests."""
        first = self._taken
        deadline_ns = self._deadline_ns
        return [deadline_ns[request] for request in self._ids[first : first + rows]]

    def every(self, position: int, step: int, lesser_ns: int) -> Sequence[int]:
        """Deadlines of every `step`-th request from number `position` on; they are of one class."""
        del lesser_ns
        deadline_ns = self._deadline_ns
        return [deadline_ns[request] for request in self._ids[self._taken + position :: step]]
