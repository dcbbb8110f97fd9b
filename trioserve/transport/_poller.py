"""Where a connection group waits: many descriptors and one timer, behind one epoll set.

An interface, because everything else of a group knows neither descriptors nor time: over a poller and sockets that
live in memory the same group runs in virtual time.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

from ._timerfd import TimerFd

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
GONE: Final = select.EPOLLERR | select.EPOLLHUP
"""Reported whatever the mask is: both directions are closed, or the connection is broken."""


class Poller(Protocol):
    """A level-triggered set of descriptors, with the meaning of epoll's."""

    timer_fd: int
    """Is readable in the set when the timer has fired."""

    def register(self, fd: int, mask: int, /) -> None:
        """Watches a descriptor for the events of a mask."""
        ...

    def modify(self, fd: int, mask: int, /) -> None:
        """Changes what a descriptor is watched for."""
        ...

    def unregister(self, fd: int, /) -> None:
        """Forgets a descriptor; one that is closed already has left the set by itself."""
        ...

    def poll(self, timeout_s: float, max_events: int, /) -> list[tuple[int, int]]:
        """What is ready, after at most `timeout_s` (-1: no limit) of blocking the thread: (descriptor, events)."""
        ...

    async def wait(self) -> None:
        """Returns when `poll` has something to report."""
        ...

    def arm(self, at_ns: int, /) -> None:
        """Sets the timer; see `TimerFd.arm`."""
        ...

    def acknowledge(self) -> None:
        """Takes the timer's expiry."""
        ...

    def pause(self, duration_s: float, /) -> None:
        """Blocks the thread for some microseconds, so that more can become ready."""
        ...

    def close(self) -> None:
        """Gives back the set and the timer, not what is registered. Idempotent."""
        ...


class EpollPoller:
    """The kernel's: an epoll set with a timerfd in it."""

    # Bound methods of the kernel's objects, not wrappers of them: they are called in every turn.
    poll: Callable[[float, int], list[tuple[int, int]]]
    register: Callable[[int, int], None]
    modify: Callable[[int, int], None]
    arm: Callable[[int], None]
    acknowledge: Callable[[], None]
    pause: Callable[[float], None]

    def __init__(self) -> None:
        self._epoll: Final = select.epoll()
        self._timer: Final = TimerFd()
        self.timer_fd = self._timer.fileno()
        self.poll = self._epoll.poll
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.arm = self._timer.arm
        self.acknowledge = self._timer.acknowledge
        self.pause = time.sleep
        self._epoll.register(self.timer_fd, READABLE)

    def unregister(self, fd: int, /) -> None:
        """See `Poller.unregister`."""
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    async def wait(self) -> None:
        """See `Poller.wait`."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())

    def close(self) -> None:
        """See `Poller.close`."""
        self._epoll.close()
        self._timer.close()
