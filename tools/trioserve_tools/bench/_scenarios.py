"""The comparisons: a load, the subjects it is put on, and what of it has a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trioserve_tools.targets import Target

from ._client import LoadClient, LoadShape
from ._figures import Figure, PartResult
from ._measure import Rounds, Sample, compared, measure, spread_of
from ._subjects import Starter, bare, mosec, trioserve

OURS: Final = "trioserve"
WARMUP_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Setting:
    """How everything is measured."""

    client: LoadClient
    seconds: float
    """Of each run."""

    rounds: int
    """Runs of each subject."""

    peer_python: str
    """Interpreter of an environment with mosec; empty = that peer is left out."""

    models: Path
    """Where the MiniLM repository is, or is built."""

    wheels: Path
    """Where downloads are kept."""

    progress: Callable[[str], None]
    """Told what is going on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a figure is made of samples."""

    title: str
    unit: str
    target: Target
    value: Callable[[Sample, Sample], float]
    """Of a sample of ours and one of the other subject, of the same round."""

    versus: str = OURS
    """The other subject; ours again if the figure needs no other."""


def ratio(ours: Sample, theirs: Sample) -> float:
    """How many times as many answers a second."""
    return ours.per_s / theirs.per_s


def added_p50_us(ours: Sample, theirs: Sample) -> float:
    """How much longer half of the requests take at least, in microseconds."""
    return ours.load.p50_us - theirs.load.p50_us


def cpu_us(ours: Sample, theirs: Sample) -> float:
    """CPU time per answer of all the server's processes, in microseconds."""
    del theirs
    return ours.server_cpu_us


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load and its subjects."""

    name: str
    work: str
    connections: int
    outstanding: int
    others: tuple[str, ...]
    rules: tuple[Rule, ...]

    @property
    def title(self) -> str:
        """What a reader is told."""
        return f"{self.work}, {self.connections} connections x {self.outstanding} outstanding"

    async def run(self, setting: Setting) -> PartResult:
        """Measures it."""
        subjects = self._subjects(setting)
        shape = LoadShape(self.connections, self.outstanding, setting.seconds, WARMUP_S)
        rounds = await measure(
            subjects, setting.client, shape, rounds=setting.rounds, progress=setting.progress
        )
        return PartResult(self.name, self.title, [self._figure(rule, rounds) for rule in self.rules], rounds)

    def _subjects(self, setting: Setting) -> dict[str, Starter]:
        subjects = {OURS: trioserve(self.work)}
        for other in self.others:
            if other != "mosec":
                subjects[other] = bare(other, self.work)
            elif setting.peer_python:
                subjects[other] = mosec(self.work, setting.peer_python)
        return subjects

    def _figure(self, rule: Rule, rounds: Rounds) -> Figure:
        title = f"{self.name}: {rule.title}"
        if rule.versus not in rounds:
            reason = f"{rule.versus} is not installed"
            return Figure(title, rule.unit, rule.target, reason=reason)
        if rule.versus == OURS:
            spread = spread_of(rounds[OURS], lambda sample: rule.value(sample, sample))
        else:
            spread = compared(rounds[OURS], rounds[rule.versus], rule.value)
        return Figure(title, rule.unit, rule.target, spread)


def _times(bound: float, other: str) -> Rule:
    return Rule(f"throughput over {other}'s", "x", Target(">=", bound), ratio, other)


SCENARIOS: Final = (
    Scenario(
        "w1-64x1",
        "w1",
        64,
        1,
        ("mosec", "echo"),
        (
            _times(2.0, "mosec"),
            _times(0.4, "echo"),
            Rule("server CPU per request", "µs", Target("<=", 15), cpu_us),
        ),
    ),
    Scenario("w1-16x16", "w1", 16, 16, ("reflector",), (_times(0.25, "reflector"),)),
    Scenario(
        "w1-1x1",
        "w1",
        1,
        1,
        ("echo",),
        (Rule("p50 over echo's", "µs", Target("<=", 150), added_p50_us, "echo"),),
    ),
    Scenario("w2-64x1", "w2", 64, 1, ("mosec",), (_times(1.5, "mosec"),)),
    Scenario("w3-32x1", "w3", 32, 1, ("mosec",), (_times(2.5, "mosec"),)),
)
