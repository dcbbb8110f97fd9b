"""`trioserve replay`: what other policies would have made of recorded traffic.

The record is run through the scheduler in virtual time: an hour takes seconds, and the same record, policy and seed
give the same batches.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trioserve.cli import COMMANDS
from trioserve.cli._table import table

if TYPE_CHECKING:
    from trioserve.observability import TrafficRecord
    from trioserve.testing import Simulation

POLICIES: Final = ("adaptive", "greedy", "fixed:2")

_EPILOG = """\
A server records what it is asked with --set record=DIRECTORY. Of a request the record has the time, the deadline, the
rows and the class, never what was in it. Policies: adaptive, greedy, fixed, triton, tensorflow, bentoml, clipper; the
window of 2 ms can be another one: fixed:0.5.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the arguments."""
    parser = subparsers.add_parser(
        "replay",
        help=COMMANDS["replay"],
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("record", type=Path, help="what a server has recorded")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help=f"repeatable (default {', '.join(POLICIES)})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of how run times scatter (default 0)")
    parser.add_argument("--json", action="store_true", help="everything, with each batch, as a line a policy")


def run(args: argparse.Namespace) -> int:
    """Replays; 1 if the record cannot be read or a policy is unknown."""
    from trioserve.batching import policy_named
    from trioserve.observability import TrafficError, TrafficRecord

    names = args.policy or list(POLICIES)
    try:
        record = TrafficRecord.load(args.record)
        sla_ns = int(record.about.get("sla_ns", 0))
        policies = [(name, policy_named(name, sla_ns)) for name in names]
        replayed = [(name, _replay(record, policy, name, args.seed)) for name, policy in policies]
    except (OSError, TrafficError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        for name, simulation in replayed:
            print(json.dumps(_facts(name, simulation)))
    else:
        print(_report(record, replayed))
    return 0


def _replay(record: TrafficRecord, policy: Any, name: str, seed: int) -> Simulation:  # noqa: ANN401  see `Policy`
    """Runs a record through a scheduler; each row of a request counts as one request.

    Raises:
        ValueError: the record lacks what must be known of the model.
    """
    import numpy as np

    from trioserve.batching import ServiceModel
    from trioserve.testing import Trace, simulate

    about = record.about
    missing = sorted({"service", "max_rows", "sla_ns"} - about.keys())
    if missing:
        raise ValueError(f"the record lacks {', '.join(missing)} of the model: was it loaded?")
    arrivals, rows = record.arrivals, record.arrivals["rows"]
    admission = name.startswith("adaptive")
    trace = Trace(
        np.repeat(arrivals["at_ns"], rows),
        timeout_ns=np.repeat(arrivals["timeout_ns"], rows),
        # The rivals know no classes.
        classes=np.repeat(arrivals["klass"], rows) if admission and arrivals["klass"].any() else None,
    )
    return simulate(
        policy,
        trace,
        ServiceModel(*(_by_rows(about["service"][key]) for key in ("mean_ns", "deviation_ns"))),
        max_rows=int(about["max_rows"]),
        sla_ns=int(about["sla_ns"]),
        seed=seed,
        admission=admission,
    )


def _by_rows(times_ns: dict[str, float]) -> dict[int, int]:
    return {int(rows): int(time_ns) for rows, time_ns in times_ns.items()}


def _facts(name: str, simulation: Simulation) -> dict[str, Any]:
    latencies = {
        f"p{percent}_ms": simulation.latency_ms(percent) if simulation.latencies_ms().size else None
        for percent in (50, 99)
    }
    return {
        "policy": name,
        "rows": simulation.requests,
        "in_time": simulation.ok,
        "late": simulation.late,
        "dropped": simulation.dropped,
        "shed": simulation.shed,
        "mean_ms": simulation.mean_latency_ms() if simulation.latencies_ms().size else None,
        **latencies,
        "rows_a_batch": simulation.mean_rows(),
        "cut_reasons": simulation.reasons(),
        "batches": [(batch.start_ns, batch.rows) for batch in simulation.batches],
    }


def _report(record: TrafficRecord, replayed: list[tuple[str, Simulation]]) -> str:
    arrivals = record.arrivals
    seconds = float(arrivals["at_ns"][-1]) / 1e9 if len(arrivals) else 0.0
    lines = [f"{record.model}: {len(arrivals):,} requests in {seconds:,.1f} s"]
    if record.dropped:
        lines.append(f"{record.dropped:,} more came after the record was full")
    header = ("policy", "in time", "late", "dropped", "shed", "mean ms", "p50 ms", "p99 ms", "rows a batch")
    rows = []
    for name, simulation in replayed:
        facts = _facts(name, simulation)
        share = f"{100 * simulation.in_time:.2f} %"
        times = ["" if facts[key] is None else f"{facts[key]:.2f}" for key in ("mean_ms", "p50_ms", "p99_ms")]
        counts = [f"{facts[key]:,}" for key in ("late", "dropped", "shed")]
        rows.append((name, share, *counts, *times, f"{facts['rows_a_batch']:.1f}"))
    return "\n".join([*lines, table(header, rows)])
