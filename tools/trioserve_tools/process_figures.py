"""What the kernel says of a process: CPU time, memory, descriptors, wake-ups; and of the machine: who else is busy."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Process ids of the children of a process, their children and so on; parents before their children."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = sorted(children[waiting.pop(0)])
        found += below
        waiting += below
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie that only waits to be collected."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def cpu_ns(pid: int) -> int:
    """CPU time that the living threads of a process have used, user and system, in nanoseconds.

    Exact where the kernel keeps scheduler statistics, else in clock ticks.
    """
    total_ns = 0
    for task in _tasks(pid):
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:
            fields = _stat_fields(pid)
            return int((int(fields[11]) + int(fields[12])) * 1e9 / _TICKS_PER_S) if fields else 0
    return total_ns


def wakeups(pids: Iterable[int]) -> dict[int, int]:
    """How often each thread of some processes was given a CPU so far: its context switches, by thread id."""
    return {
        int(task.name): sum(
            int(line.split()[1]) for line in _lines(task / "status") if "ctxt_switches" in line
        )
        for pid in pids
        for task in _tasks(pid)
    }


def wakeups_since(earlier: Mapping[int, int], later: Mapping[int, int]) -> int:
    """Wake-ups between two readings, of the threads that lived all the while."""
    return sum(later[thread] - count for thread, count in earlier.items() if thread in later)


def rss_nbytes(pid: int) -> int:
    """Resident memory of a process in bytes, shared pages included."""
    for line in _lines(Path(f"/proc/{pid}/status")):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"no process {pid}")


def open_fds(pid: int) -> int:
    """Descriptors that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@dataclass(frozen=True, slots=True)
class MachineTime:
    """CPU time of the whole machine since it was started, in seconds of one CPU."""

    busy_s: float
    """Spent on processes and interrupts."""

    stolen_s: float
    """Wanted, but given to another virtual machine by the host."""

    idle_s: float
    """Spent on nothing, or on waiting for a disk."""

    @classmethod
    def now(cls) -> MachineTime:
        """Reads the counters."""
        user, nice, system, idle, io_wait, irq, soft_irq, steal = (
            int(word) / _TICKS_PER_S for word in _lines(Path("/proc/stat"))[0].split()[1:9]
        )
        return cls(user + nice + system + irq + soft_irq, steal, idle + io_wait)

    def since(self, earlier: MachineTime) -> MachineTime:
        """What was spent between two readings."""
        return MachineTime(
            self.busy_s - earlier.busy_s, self.stolen_s - earlier.stolen_s, self.idle_s - earlier.idle_s
        )

    @property
    def total_s(self) -> float:
        """All of it: the time that passed, times the number of CPUs."""
        return self.busy_s + self.stolen_s + self.idle_s


def _tasks(pid: int) -> Iterator[Path]:
    try:
        yield from Path(f"/proc/{pid}/task").iterdir()
    except OSError:
        return


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name before them stands in parentheses and may hold anything, spaces and parentheses too.
    return text.rpartition(")")[2].split()
