"""Rounds: every subject of a comparison is loaded in turn, again and again, and all of them are up meanwhile."""

from __future__ import annotations

import math
import os
import resource
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from trioserve_tools.process_figures import MachineTime

from ._client import LoadClient, LoadRecord, LoadShape
from ._subjects import Starter, Subject


@dataclass(frozen=True, slots=True)
class Sample:
    """One run against one subject."""

    load: LoadRecord

    cpu_us: Mapping[str, float]
    """CPU time of the subject's processes per answer, in microseconds, by part."""

    others: float
    """What part of the machine was busy with neither the subject nor the client, 0 to 1."""

    stolen: float
    """What part of the machine's time its host gave to somebody else, 0 to 1."""

    load_average: float
    """Of one minute, after the run."""

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return self.load.per_s

    @property
    def client_cpus(self) -> float:
        """CPUs that the client kept busy; near 1 it may be what limits the figure."""
        return self.load.cpu_s / self.load.seconds

    @property
    def server_cpu_us(self) -> float:
        """CPU time per answer of all the subject's processes, in microseconds."""
        return sum(self.cpu_us.values())


Rounds = dict[str, list[Sample]]
"""Samples of each subject, in the order they were taken in."""


async def measure(
    subjects: Mapping[str, Starter],
    client: LoadClient,
    shape: LoadShape,
    *,
    rounds: int,
    progress: Callable[[str], None],
) -> Rounds:
    """Starts the subjects and loads them in turn.

    Args:
        subjects: By name, in the order of a round.
        client: What loads them.
        shape: The load.
        rounds: Runs against each.
        progress: Told after every run.

    Raises:
        LoadFailed: A run was void.
        SubjectFailed, ServerFailed: A subject did not start or end.
    """
    taken: Rounds = {name: [] for name in subjects}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trioserve-bench-")))
        running = {name: await stack.enter_async_context(start()) for name, start in subjects.items()}
        for name, subject in running.items():
            subject.plan.write(folder / name)
        for number in range(rounds):
            for name, subject in running.items():
                sample = await _run(client, subject, folder / name, shape)
                taken[name].append(sample)
                progress(f"round {number + 1} of {rounds}, {name}: {sample.per_s:,.0f}/s")
    return taken


async def _run(client: LoadClient, subject: Subject, plan: Path, shape: LoadShape) -> Sample:
    cpu_ns, client_s, machine = subject.cpu_ns(), _children_cpu_s(), MachineTime.now()
    record = await client.run(subject.port, plan, shape)
    spent_ns = {part: after - cpu_ns[part] for part, after in subject.cpu_ns().items()}
    client_s = _children_cpu_s() - client_s
    machine = MachineTime.now().since(machine)
    ours_s = client_s + sum(spent_ns.values()) / 1e9
    # The machine's own counters tick every 10 ms: a run may end before they move, and what is left of a short one can
    # be below nothing.
    total_s = machine.total_s or math.inf
    return Sample(
        record,
        {part: spent / 1000 / record.answers_all for part, spent in spent_ns.items()},
        max(0.0, (machine.busy_s - ours_s) / total_s),
        machine.stolen_s / total_s,
        os.getloadavg()[0],
    )


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of several rounds."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """What is quoted."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)


def spread_of(samples: Sequence[Sample], value: Callable[[Sample], float]) -> Spread:
    """A value over the rounds of one subject."""
    return Spread([value(sample) for sample in samples])


def compared(
    ours: Sequence[Sample], theirs: Sequence[Sample], how: Callable[[Sample, Sample], float]
) -> Spread:
    """A comparison, taken round by round: what disturbed one round disturbed both sides of it."""
    return Spread([how(mine, other) for mine, other in zip(ours, theirs, strict=True)])
