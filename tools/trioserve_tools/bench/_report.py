"""The tables that are printed and the record that is written: pure functions of what was measured."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from trioserve_tools.targets import number

from ._figures import Figure, PartResult
from ._measure import Sample, Spread, spread_of
from ._scenarios import Setting

_VERDICTS: Final = {True: "met", False: "MISSED", None: "not measured"}


def environment(setting: Setting) -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_client": setting.client.language,
        "seconds": setting.seconds,
        "rounds": setting.rounds,
    }


def heading(facts: dict[str, Any], date: str) -> str:
    """The first lines of a report."""
    return (
        f"trioserve bench, {date}: {facts['system']}, {facts['cpus']} CPUs, Python {facts['python']}, "
        f"numpy {facts['numpy']}\n{facts['rounds']} rounds of {facts['seconds']:g} s, subjects in turn; "
        f"load client in {facts['load_client']}, on the same CPUs; medians, in parentheses the range"
    )


def part_report(part: PartResult) -> str:
    """What was measured of each subject."""
    lines = [part.title]
    if part.rounds:
        head = ["", "answers/s", "p50 µs", "p99 µs", "CPU µs each", "client CPUs"]
        lines += aligned([head, *(_subject(name, samples) for name, samples in part.rounds.items())])
        every = [sample for samples in part.rounds.values() for sample in samples]
        lines.append(f"  meanwhile: {_noise(every)}")
    lines += [f"  {name}: {text}" for name, text in part.facts.items()]
    return "\n".join(lines)


def figures_report(figures: Iterable[Figure]) -> str:
    """All figures that have a target, with what came of it."""
    head = ["figure", "median", "range", "target", ""]
    return "\n".join(aligned([head, *map(_figure, figures)]))


def record(parts: Sequence[PartResult], facts: dict[str, Any], *, date: str, command: str) -> dict[str, Any]:
    """Everything as JSON values."""
    return {
        "date": date,
        "command": command,
        "environment": facts,
        "figures": [figure.record() for part in parts for figure in part.figures],
        "samples": {
            part.name: {
                name: [dataclasses.asdict(sample) | {"per_s": sample.per_s} for sample in samples]
                for name, samples in part.rounds.items()
            }
            for part in parts
            if part.rounds
        },
        "facts": {part.name: dict(part.facts) for part in parts if part.facts},
    }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _subject(name: str, samples: Sequence[Sample]) -> list[str]:
    per_s = spread_of(samples, lambda sample: sample.per_s)
    parts = {part: Spread([sample.cpu_us[part] for sample in samples]).median for part in samples[0].cpu_us}
    total = sum(parts.values())
    cpu = number(total)
    if min(parts.values()) > total / 100:
        cpu += f" ({', '.join(f'{part} {number(value)}' for part, value in parts.items())})"
    return [
        name,
        _with_range(per_s),
        number(spread_of(samples, lambda sample: sample.load.p50_us).median),
        number(spread_of(samples, lambda sample: sample.load.p99_us).median),
        cpu,
        f"{spread_of(samples, lambda sample: sample.client_cpus).median:.2f}",
    ]


def _with_range(spread: Spread) -> str:
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def _noise(samples: Sequence[Sample]) -> str:
    others = spread_of(samples, lambda sample: sample.others)
    stolen = spread_of(samples, lambda sample: sample.stolen)
    average = spread_of(samples, lambda sample: sample.load_average)
    return (
        f"others used {others.median:.0%} of the machine (at most {others.high:.0%}), "
        f"stolen {stolen.median:.0%} (at most {stolen.high:.0%}), "
        f"load average {average.low:.1f} to {average.high:.1f}"
    )


def _figure(figure: Figure) -> list[str]:
    target = f"{figure.target} {figure.unit}".strip()
    if figure.spread is None:
        return [figure.title, "", "", target, f"not measured: {figure.reason}"]
    spread = figure.spread
    return [
        figure.title,
        f"{number(spread.median)} {figure.unit}".strip(),
        f"{number(spread.low)} to {number(spread.high)}",
        target,
        _VERDICTS[figure.met],
    ]
