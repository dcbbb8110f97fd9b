"""Load shedding by semaphores: a request that finds no permit is refused at once, it never waits."""

from __future__ import annotations

from typing import Final


class Permits:
    """A counting semaphore without waiters.

    Args:
        limit: permits in all, at least 1.
    """

    __slots__ = ("high_water", "limit", "taken")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit: expected at least 1 permit, got {limit}")
        self.limit: Final = limit
        self.taken = 0
        self.high_water = 0

    def take_up_to(self, count: int) -> int:
        """Takes `count` permits or as many as are left, and returns how many that was."""
        left = self.limit - self.taken
        count = min(count, left)
        self.taken += count
        self.high_water = max(self.high_water, self.taken)
        return count

    def release(self, count: int) -> None:
        """Returns permits taken before."""
        self.taken -= count
        if self.taken < 0:
            raise AssertionError("more permits came back than were taken: this is a bug")


class Gate:
    """The admission of one model: permits for rows, its own, and for payload bytes, shared by all models.

    Args:
        rows: permits for rows queued and running.
        nbytes: permits for payload bytes, shared.
    """

    __slots__ = ("nbytes", "rows")

    def __init__(self, rows: Permits, nbytes: Permits) -> None:
        self.rows: Final = rows
        self.nbytes: Final = nbytes

    def admit(self, rows: int, nbytes: int) -> bool:
        """Takes the permits of one request, all or none.

        Args:
            rows: its batch rows.
            nbytes: its payload.
        """
        row_permits = self.rows
        byte_permits = self.nbytes
        if row_permits.taken + rows > row_permits.limit or byte_permits.taken + nbytes > byte_permits.limit:
            return False
        taken = row_permits.taken = row_permits.taken + rows
        row_permits.high_water = max(row_permits.high_water, taken)
        taken = byte_permits.taken = byte_permits.taken + nbytes
        byte_permits.high_water = max(byte_permits.high_water, taken)
        return True

    def admit_run(self, count: int, nbytes_each: int) -> int:
        """Takes the permits of a run of one-row requests and returns how many of them, from the front, got one."""
        admitted = count
        if nbytes_each:
            admitted = min(count, (self.nbytes.limit - self.nbytes.taken) // nbytes_each)
        admitted = self.rows.take_up_to(admitted)
        self.nbytes.take_up_to(admitted * nbytes_each)
        return admitted

    def release(self, rows: int, nbytes: int) -> None:
        """Returns the permits of requests whose slots are free."""
        self.rows.release(rows)
        self.nbytes.release(nbytes)
