"""The tables of docs/discussion/scheduling.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from trioserve_tools import markdown_table

from ._closed_form import waiting
from ._models import CASES
from ._overload import highest_load, mean_of, overload, recovery_s
from ._rivals import CAPACITY_PER_S, RIVALS, outcome, overloaded, traces
from ._windows import WINDOW_CASES, window_row


class Size(NamedTuple):
    """How much is simulated."""

    requests: int
    """Served, at most, in a run."""
    seconds: float
    """Of a rival's trace."""
    seeds: int


FULL: Final = Size(20_000, 10.0, 2)
SHORT: Final = Size(800, 0.5, 1)

Table = Callable[[Size], str]


def closed_form(size: Size) -> str:
    """Greedy and wait-for-two."""
    columns = [
        "arrivals in one run time",
        "greedy: mean latency / run time",
        "known",
        "wait for 2: longer by",
        "known",
    ]
    rows = [
        [
            f"{one.x:g}",
            f"{one.greedy:.3f}",
            f"{one.expected_greedy:g}",
            f"{one.waiting:+.2%}",
            f"{one.expected_waiting:+.2%}",
        ]
        for one in waiting(requests=10 * size.requests)
    ]
    return markdown_table.render(columns, rows)


def figures(size: Size) -> str:
    """Goodput in overload, and the highest load, beside what the design promises."""
    columns = [
        "S(b) in ms, SLA",
        "goodput at 2x / 10x",
        "promised",
        "late at 2x / 10x",
        "dropped",
        "p99, ms",
        "sheds that left room",
        "highest load with 99.9 % in time",
        "promised",
        "normal again after",
        "with retries",
    ]
    rows = []
    for case in CASES:
        two, ten = (
            mean_of([overload(case, load, requests=size.requests, seed=seed) for seed in range(size.seeds)])
            for load in (2, 10)
        )
        highest = [highest_load(case, requests=size.requests, seed=seed) for seed in range(size.seeds)]
        seconds = size.requests / 20_000
        recovery = [recovery_s(case, retries=retries, overload_s=seconds) for retries in (0, 1)]
        rows.append(
            [
                case.name,
                f"{two.goodput:.3f} / {ten.goodput:.3f}",
                f"{case.at_2x:g} / {case.at_10x:g}",
                f"{two.late:.2%} / {ten.late:.2%}",
                f"{two.dropped:.2%} / {ten.dropped:.2%}",
                f"{two.p99_ms:.1f} / {ten.p99_ms:.1f}",
                f"{two.left_room:.1%} / {ten.left_room:.1%}",
                f"{sum(highest) / len(highest):.2f}",
                f"{case.highest:g}",
                f"{recovery[0]:.2f} s",
                f"{recovery[1]:.2f} s",
            ]
        )
    return markdown_table.render(columns, rows)


def rivals(size: Size) -> str:
    """Mean latency and throughput of every policy on the same arrivals."""
    arrivals = traces(size.seconds)
    columns = ["mean latency, ms", *arrivals]
    rows = []
    for rival in RIVALS:
        cells = [rival.name]
        for name, trace in arrivals.items():
            found = outcome(rival, trace)
            cells.append(f"{found.mean_ms:.2f}" + (f" ({found.per_s:,.0f}/s)" if "clients" in name else ""))
        rows.append(cells)
    return markdown_table.render(columns, rows)


def rivals_in_overload(size: Size) -> str:
    """What every policy answers in time when too much is offered."""
    columns = ["answered in time, of the capacity", "1.2x", "2x", "10x"]
    streams = [overloaded(load, size.seconds / 4) for load in (1.2, 2, 10)]
    rows = [
        [rival.name, *(f"{outcome(rival, stream).per_s / CAPACITY_PER_S:.3f}" for stream in streams)]
        for rival in RIVALS
    ]
    return markdown_table.render(columns, rows)


def windows(size: Size) -> str:
    """Mean latency against the best fixed window of each load."""
    columns = ["S(b) in ms, executors", "arrivals", *(f"{load:g}" for load in WINDOW_CASES.loads)]
    rows = [
        [
            f"{fixed_ms:g} + {row_ms:g} b, {executors}",
            kind,
            *window_row(fixed_ms, row_ms, executors, kind, size.requests // 2, size.seeds),
        ]
        for fixed_ms, row_ms in WINDOW_CASES.models
        for executors, kind in WINDOW_CASES.settings
    ]
    return markdown_table.render(columns, rows)


TABLES: Final[dict[str, Table]] = {
    "closed-form": closed_form,
    "figures": figures,
    "rivals": rivals,
    "rivals-in-overload": rivals_in_overload,
    "windows": windows,
}
