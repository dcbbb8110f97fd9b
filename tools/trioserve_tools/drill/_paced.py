"""The paced client, and what it is told: requests at planned times, whatever becomes of the others.

Nothing is sent later because an answer is late, and latency is counted from the planned time, so no queue can hide in
the client. If the client itself falls behind its schedule, the run is void: that is seen in its record.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import trio

from trioserve_protocol import RequestClass, Tag, bind_frame, tlv
from trioserve_tools.compiled import NoProgram, compiled

from ._drill import NotRun
from ._script import DRAIN_S, Loop, Record, Schedule, Script, Template, quantile
from ._wire import HANDLE, infer

SOURCE: Final = Path(__file__).parent / "paced.c"
PROGRAMS: Final = Path(".cache/bench")
GRACE_S: Final = 30.0

CLASSES: Final = tuple(RequestClass)


class FellBehind(NotRun):
    """The client could not keep to its schedule, so a run says nothing about the server."""


def preambles(model: str, count: int, tenants: Sequence[str] = ()) -> list[bytes]:
    """What each of some connections begins with.

    Args:
        model: Bound to `HANDLE`.
        count: Connections.
        tenants: On whose account, in turn; nobody's if there are none.
    """
    return [
        bind_frame(1, HANDLE, model, tlv(Tag.TENANT, tenants[i % len(tenants)]) if tenants else b"")
        for i in range(count)
    ]


def template(
    payload: bytes,
    expected: bytes = b"",
    *,
    deadline_ms: float = 60_000,
    request_class: RequestClass = RequestClass.CRITICAL,
) -> Template:
    """A request of the model that is bound to `HANDLE`."""
    frame = infer(0, payload, timeout_us=int(deadline_ms * 1000), request_class=request_class)
    return Template(frame, expected)


def poisson(
    phases: Sequence[tuple[float, float]],
    connections: int,
    templates: int,
    rng: random.Random,
) -> Schedule:
    """Arrivals that know nothing of each other.

    Args:
        phases: One after the other: requests a second, and seconds.
        connections: Drawn for each request.
        templates: Drawn for each request.
        rng: Draws.
    """
    draw = np.random.default_rng(rng.getrandbits(64))
    began_s, times_s = 0.0, []
    for rate, seconds in phases:
        count = draw.poisson(rate * seconds)
        times_s.append(began_s + np.sort(draw.uniform(0, seconds, count)))
        began_s += seconds
    times_ns = (np.concatenate(times_s) * 1e9).astype(np.int64)
    return Schedule(
        times_ns,
        draw.integers(connections, size=len(times_ns), dtype=np.uint32),
        draw.integers(templates, size=len(times_ns), dtype=np.uint32),
    )


def merged(schedules: Sequence[Schedule]) -> Schedule:
    """Several schedules at the same time."""
    times_ns = np.concatenate([one.times_ns for one in schedules])
    order = np.argsort(times_ns, kind="stable")
    return Schedule(
        times_ns[order],
        np.concatenate([one.connections for one in schedules])[order],
        np.concatenate([one.templates for one in schedules])[order],
    )


async def run_script(script: Script, port: int) -> Record:
    """Runs a script against a server on this machine.

    Raises:
        NotRun: There is no client here, because there is no compiler.
        ConnectionError: The client gave up: it says why.
    """
    try:
        program = await trio.to_thread.run_sync(compiled, SOURCE, PROGRAMS)
    except NoProgram as error:
        raise NotRun(str(error)) from None
    plan = script.plan
    seconds = plan.seconds if isinstance(plan, Loop) else float(plan.times_ns[-1]) / 1e9
    with tempfile.TemporaryDirectory(prefix="trioserve-paced-") as folder:
        told, record = Path(folder, "script"), Path(folder, "record")
        script.write(told)
        command = [str(program), "--port", str(port), "--script", str(told), "--record", str(record)]
        with trio.fail_after(seconds + DRAIN_S + GRACE_S):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()
            raise ConnectionError(f"the paced client ended with status {done.returncode}: {message}")
        said = json.loads(done.stdout)
        del said["cpu_s"]
        return Record.read(record, **said)


def kept_pace(record: Record, most_ms: float) -> Record:
    """The record of an open run, if the client kept to its schedule.

    Args:
        record: It.
        most_ms: Later than this it may have come to one request of a hundred.

    Raises:
        FellBehind: It did not.
    """
    behind_ms = quantile(record.behind_ms, 0.99)
    if behind_ms > most_ms:
        raise FellBehind(
            f"the load client fell behind its schedule: p99 {behind_ms:.2f} ms, so nothing is known"
        )
    return record
