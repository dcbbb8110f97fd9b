"""The timer, with real descriptors."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import pytest

from trioserve.request import NEVER_NS
from trioserve.transport import _timerfd as module
from trioserve.transport._poller import READABLE, EpollPoller
from trioserve.transport._timerfd import TimerFd


@pytest.fixture
def timer() -> Iterator[TimerFd]:
    made = TimerFd()
    yield made
    made.close()


def is_readable(timer: TimerFd, within_s: float = 0.0) -> bool:
    return bool(select.select([timer], [], [], within_s)[0])


def test_it_fires_at_its_time(timer: TimerFd) -> None:
    at_ns = time.monotonic_ns() + 20_000_000
    timer.arm(at_ns)
    assert not is_readable(timer)
    assert is_readable(timer, 1.0)
    assert 0 <= time.monotonic_ns() - at_ns < 10_000_000
    timer.acknowledge()
    assert not is_readable(timer)


def test_the_past_is_now_and_never_is_never(timer: TimerFd) -> None:
    timer.arm(0)
    assert is_readable(timer, 1.0)
    timer.arm(NEVER_NS)
    assert not is_readable(timer)
    timer.acknowledge()


def test_an_earlier_time_replaces_a_later_one_and_the_other_way_round(timer: TimerFd) -> None:
    now_ns = time.monotonic_ns()
    timer.arm(now_ns + 10_000_000_000)
    timer.arm(now_ns)
    assert is_readable(timer, 1.0)
    timer.arm(now_ns + 10_000_000_000)
    assert not is_readable(timer)


def test_the_same_time_again_costs_no_call(timer: TimerFd, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ns = time.monotonic_ns() + 10_000_000_000
    timer.arm(at_ns)
    monkeypatch.setattr(module, "_libc", None)
    timer.arm(at_ns)


def test_the_same_time_may_be_set_after_it_has_fired(timer: TimerFd) -> None:
    timer.arm(1)
    timer.acknowledge()
    timer.arm(1)
    assert is_readable(timer, 1.0)


def test_closing_twice_closes_nobody_else() -> None:
    timer = TimerFd()
    fd = timer.fileno()
    timer.close()
    other = os.open("/dev/null", os.O_RDONLY)
    try:
        assert other == fd
        timer.close()
        os.fstat(other)
    finally:
        os.close(other)


def test_a_closed_timer_cannot_be_armed() -> None:
    timer = TimerFd()
    timer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        timer.arm(1)


def test_a_poller_reports_descriptors_and_its_timer() -> None:
    poller = EpollPoller()
    reader, writer = os.pipe()
    try:
        poller.register(reader, READABLE)
        assert poller.poll(0, 8) == []
        poller.arm(1)
        assert poller.poll(1, 8) == [(poller.timer_fd, READABLE)]
        poller.acknowledge()
        os.write(writer, b"x")
        assert poller.poll(1, 8) == [(reader, READABLE)]
        poller.modify(reader, 0)
        assert poller.poll(0, 8) == []
    finally:
        os.close(reader)
        os.close(writer)
    poller.unregister(reader)  # closed already: nothing to forget
    poller.close()
    poller.close()


async def test_waiting_for_a_poller() -> None:
    poller = EpollPoller()
    poller.arm(time.monotonic_ns() + 1_000_000)
    await poller.wait()
    assert poller.poll(0, 8) == [(poller.timer_fd, READABLE)]
    poller.close()
