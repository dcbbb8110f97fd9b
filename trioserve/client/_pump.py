"""Threads that share one connection: whoever waits drives it, one at a time, for all.

There is no reader thread. The first thread that waits for its call becomes the *leader*: it polls the socket, reads,
and hands out results, its own and the others' (*followers*, who sleep on a queue of their own). When its own call is
done it wakes one follower to lead. With one thread that is a plain blocking client without a hand-over, and nothing
runs while nobody calls; the price is that the end of an idle connection is noticed at the next call.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TypeAlias

from trioserve.errors import TrioserveError

from ._calls import Call
from ._failures import ConnectionLost
from ._link import Link

Waiter: TypeAlias = "SimpleQueue[None]"

_FILLS_PER_POLL = 8


class Pump:
    """One connection and the threads that wait for it.

    Attributes:
        link: The connection; its session is touched under the lock only.
    """

    def __init__(self, link: Link, lock: threading.Lock) -> None:
        """Take over a link.

        Args:
            link: Connected.
            lock: Guards the session of the link and everything else that the client's threads share.

        Ownership:
            The pump closes the link when it is over and no thread is using it.
        """
        self.link = link
        self._lock = lock
        self._leading = False
        self._closed = False
        self._followers: deque[Waiter] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def flush(self) -> None:
        """Write what the kernel takes; a leader writes the rest. Lock held."""
        if (
            not self.link.blocked
            and not self._closed
            and not self.link.flush(time.monotonic())
            and self._leading
        ):
            os.eventfd_write(self._wake_fd, 1)

    def look(self) -> None:
        """Take what has come while nobody waited: a GOAWAY, the end of the connection. Lock held."""
        if not self._leading and not self._closed and self.link.fill():
            self.link.feed(time.monotonic())
            self._close_if_over()

    def wait(self, call: Call, waiter: Waiter, deadline_s: float) -> None:
        """Return when the call is done or the deadline has passed.

        Args:
            call: Its `on_done` puts something into `waiter`.
            waiter: Of this thread and call.
            deadline_s: Absolute, `time.monotonic`; infinity for none.
        """
        try:
            while True:
                with self._lock:
                    if call.done:
                        return
                    leads = not self._leading
                    if leads:
                        self._leading = True
                    else:
                        self._followers.append(waiter)
                if leads:
                    self._lead(call, deadline_s)
                    return
                if not _wait_for_turn(waiter, deadline_s):
                    return
        finally:
            self._leave(waiter)

    def part(self, error: TrioserveError) -> None:
        """Say goodbye: all calls get `error`. Lock held."""
        if not self._closed:
            self.link.part(error, time.monotonic())
            os.eventfd_write(self._wake_fd, 1)
            self._close_if_over()

    def _lead(self, call: Call, deadline_s: float) -> None:
        try:
            link = self.link
            poller = select.poll()
            poller.register(self._wake_fd, select.POLLIN)
            while not call.done and not link.session.over:
                poller.register(link.sock, select.POLLIN | (select.POLLOUT if link.blocked else 0))
                ready = dict(poller.poll(0 if link.holds_input else _left_ms(deadline_s)))
                if not ready and not link.holds_input and time.monotonic() >= deadline_s:
                    return
                if self._wake_fd in ready:
                    os.eventfd_read(self._wake_fd)
                if link.holds_input or link.sock.fileno() in ready:
                    self._turn()
        finally:
            with self._lock:
                self._leading = False

    def _turn(self) -> None:
        """Read, hand out, write. Interrupted in the middle (Ctrl-C), the connection's state is not to be trusted."""
        link = self.link
        try:
            for _ in range(_FILLS_PER_POLL):
                if not link.fill():
                    break
                with self._lock:
                    link.feed(time.monotonic())
                if link.session.body is None:
                    break
            with self._lock:
                link.flush(time.monotonic())
        except BaseException:
            with self._lock:
                link.session.lost(ConnectionLost("the thread that was reading was interrupted"))
            raise

    def _leave(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter in self._followers:
                self._followers.remove(waiter)
            if not self._leading and self._followers:
                self._followers.popleft().put(None)
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self.link.session.over and not self._leading and not self._closed:
            self._closed = True
            self.link.part(ConnectionLost("the connection was drained"), time.monotonic())
            self.link.close()
            os.close(self._wake_fd)


def _wait_for_turn(waiter: Waiter, deadline_s: float) -> bool:
    """Sleep until the call is done or this thread is to lead; returns False when the deadline has passed first."""
    left_s = deadline_s - time.monotonic()
    try:
        waiter.get(timeout=None if left_s == float("inf") else max(left_s, 0.0))
    except Empty:
        return False
    return True


def _left_ms(deadline_s: float) -> int | None:
    left_s = deadline_s - time.monotonic()
    if left_s == float("inf"):
        return None
    # Rounded up: rounded down the last millisecond would be polled away at full speed.
    return max(0, int(min(left_s, 1e6) * 1000) + 1)
