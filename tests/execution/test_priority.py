"""The priority of a worker that loads beside one that serves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trioserve.execution import _priority
from trioserve.execution._priority import lower, may_raise, raise_again

SLEEPER = (
    "import threading, time; threading.Thread(target=time.sleep, args=(30,)).start(); print(1, flush=True)"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with two threads."""
    with subprocess.Popen([sys.executable, "-S", "-c", SLEEPER], stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def levels(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.skipif(not may_raise(), reason="this process may not raise a priority")
def test_all_threads_are_raised_again(child: subprocess.Popen[bytes]) -> None:
    assert lower(child.pid)
    assert child.stdout is not None
    child.stdout.readline()
    assert levels(child.pid) == {os.SCHED_IDLE}
    raise_again(child.pid)
    assert levels(child.pid) == {os.SCHED_OTHER}


def test_what_could_not_be_raised_again_is_not_lowered(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_priority, "may_raise", lambda: False)
    assert not lower(child.pid)
    assert levels(child.pid) == {os.SCHED_OTHER}


def test_a_child_that_has_ended_is_no_error() -> None:
    assert not lower(2**22 + 1)
    raise_again(2**22 + 1)
