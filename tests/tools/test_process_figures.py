from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time

import pytest

from trioserve_tools import process_figures
from trioserve_tools.process_figures import (
    MachineTime,
    cpu_ns,
    descendants,
    is_alive,
    open_fds,
    rss_nbytes,
    wakeups,
    wakeups_since,
)

SLEEPS = "import subprocess, sys; subprocess.run(['sleep', '30'])"


@pytest.mark.slow
def test_children_and_their_children() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True) as process:
        for _ in range(500):
            if len(descendants(process.pid)) == 1:
                break
            time.sleep(0.01)
        (child,) = descendants(process.pid)
        assert {process.pid, child} <= set(descendants(os.getpid()))
        assert is_alive(child)
        os.kill(child, 9)
        assert process.wait(10) == 0
    assert not is_alive(child)
    assert not is_alive(process.pid)
    assert descendants(process.pid) == []


def burn() -> None:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass


def test_cpu_time_is_that_of_the_process() -> None:
    before = cpu_ns(os.getpid())
    burn()
    assert 40e6 < cpu_ns(os.getpid()) - before < 5e9


def test_cpu_time_without_scheduler_statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(process_figures, "_tasks", lambda pid: iter([tmp_path]))
    before = cpu_ns(os.getpid())
    burn()
    assert 20e6 < cpu_ns(os.getpid()) - before < 5e9
    assert cpu_ns(2**22) == 0


def test_memory_and_descriptors() -> None:
    before = rss_nbytes(os.getpid())
    # A mapping of its own: the heap may have 32 MiB left from an earlier test, resident already.
    with mmap.mmap(-1, 32 << 20) as block:
        block.write(bytes(32 << 20))
        assert rss_nbytes(os.getpid()) - before > 16 << 20
    fds = open_fds(os.getpid())
    reading, writing = os.pipe()
    assert open_fds(os.getpid()) == fds + 2
    os.close(reading)
    os.close(writing)
    with pytest.raises(ProcessLookupError):
        rss_nbytes(2**22)


def test_wakeups_of_threads_that_live_on() -> None:
    before = wakeups([os.getpid()])
    for _ in range(5):
        time.sleep(0.001)
    after = wakeups([os.getpid()])
    assert wakeups_since(before, after) >= 5
    assert wakeups_since({1: 7}, {2: 9}) == 0
    assert wakeups([2**22]) == {}


def test_the_machine_spends_all_of_its_time() -> None:
    spent = MachineTime(5.0, 1.0, 14.0).since(MachineTime(3.0, 0.5, 4.0))
    assert spent == MachineTime(2.0, 0.5, 10.0)
    assert spent.total_s == 12.5
    assert MachineTime.now().total_s > 0
