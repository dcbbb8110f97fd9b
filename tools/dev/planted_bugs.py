"""Plant known mistakes in a copy of the tree, one at a time, and see that the suite catches each of them.

    python tools/dev/planted_bugs.py            # all; takes about a minute
    python tools/dev/planted_bugs.py ghost      # those whose name contains a word
    python tools/dev/planted_bugs.py batching/  # or whose file does: those of a room

A suite is worth what it catches. Every mistake here is one that a careful person could make in the rooms that decide
who gets memory and which reply ends a request. `tests/engine/test_planted_bugs.py` keeps the list applicable.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MORE = Path(__file__).with_suffix(".toml")
COPIED = ("trioserve", "protocol", "tests", "tools", "pyproject.toml")
SUITE = (
    "tests/memory/test_slots.py",
    "tests/memory/test_slots_machine.py",
    "tests/admission",
    "tests/batching",
    "tests/engine",
)
UNINVOLVED = "tests/engine/test_planted_bugs.py"  # looks at the sources, which would be catching by cheating


class Bug(NamedTuple):
    """One mistake: a text of a file and what it is replaced by."""

    name: str
    file: str
    right: str
    wrong: str


BUGS = (
    Bug(
        "a batch is ended although somebody waits for it",
        "engine/_abandon.py",
        "if any(slots.any_live(first, count) for first, count in batch.ranges):",
        "if False:",
    ),
    Bug(
        "rows that came back early come back again with the result",
        "engine/_abandon.py",
        "    ranges, batch.ranges = batch.ranges, []\n",
        "    ranges = batch.ranges\n",
    ),
    Bug(
        "whoever ran beside a suspect is proved to kill workers",
        "engine/_quarantine.py",
        "alone = len(requests) == 1 and digest in self._suspects",
        "alone = digest in self._suspects",
    ),
    Bug(
        "a suspect runs with those before it",
        "engine/_quarantine.py",
        "return (before, None) if before else",
        "return (limit, None) if before else",
    ),
    Bug(
        "what was never sent is blamed for a death",
        "engine/_stage.py",
        "if lost and lost[0] is not unsent:",
        "if lost:",
    ),
    Bug(
        "a slot is free as soon as its request is answered, though a worker may still write to it",
        "memory/_slots.py",
        "if self.hold[first] & HELD_BY_BATCH:\n            self.holds",
        "if not self.hold[first]:\n            self.holds",
    ),
    Bug(
        "whoever comes second may answer too",
        "memory/_slots.py",
        "if not self.hold[first] & HELD_BY_REQUEST:\n            return False",
        "if not self.hold[first]:\n            return False",
    ),
    Bug(
        "a freed row keeps what was special about it",
        "memory/_slots.py",
        "            self.bodies_nbytes[rows] = self.plain_body_nbytes\n",
        "",
    ),
    Bug(
        "a hole reaches into the rest of the open block",
        "memory/_slots.py",
        "        vacant[self._fill : self._end] = False\n",
        "",
    ),
    Bug(
        "the permits of ghosts are forgotten",
        "engine/_terminal.py",
        "            lane.gate.release(slots.rows[slot], slots.body_nbytes[slot])\n",
        "",
    ),
    Bug(
        "the window admits one request too many",
        "engine/_lane.py",
        "session.inflight + session.ghosts >= session.max_inflight",
        "session.inflight + session.ghosts > session.max_inflight",
    ),
    Bug(
        "a ghost of an otherwise idle connection does not count against its window",
        "engine/_lane.py",
        "if (session.inflight or session.ghosts) and (",
        "if session.inflight and (",
    ),
    Bug(
        "a request at its deadline is still served",
        "engine/_terminal.py",
        "due = deadlines_ns <= now_ns",
        "due = deadlines_ns < now_ns",
    ),
    Bug(
        "a late result is sent when the timer has not fired yet",
        "engine/_terminal.py",
        "        if lane.next_deadline_ns <= now_ns:\n            self.expire(lane, now_ns)",
        "        if lane.next_deadline_ns < 0:\n            self.expire(lane, now_ns)",
    ),
    Bug(
        "the deadline of an unusual request is not watched",
        "engine/_lane.py",
        "        slots.mark_special(first)\n"
        "        self.next_deadline_ns = min(self.next_deadline_ns, deadline_ns)\n",
        "        slots.mark_special(first)\n",
    ),
    Bug(
        "the slots of a lost worker are given away before it is reaped",
        "engine/_stage.py",
        "                grave.work.append(work)\n",
        "                self._terminal.fail_ranges(work.lane, work.ranges, ErrorCode.WORKER_LOST, reason)\n"
        "                self._release(work)\n",
    ),
    Bug(
        "the last ghost frees a session that is still being closed",
        "engine/_session.py",
        "        if session.index in self._haunted:\n            self._haunted.remove(session.index)\n",
        "        if session.closed:\n            self._haunted.discard(session.index)\n",
    ),
    Bug(
        "a batch is bound early, to a worker that is full",
        "engine/_executor.py",
        "link.in_flight < link.depth",
        "link.in_flight <= link.depth",
    ),
    Bug(
        "an old wake-up is asked for again and again",
        "engine/_executor.py",
        "            lane.wake_ns = NEVER_NS\n",
        "",
    ),
    Bug(
        "a restarted worker opens a model that drains",
        "engine/_executor.py",
        "if lane.closed_code is ErrorCode.LOADING:",
        "if lane.closed_code:",
    ),
    Bug(
        "a bad row inside a request is answered as if it were good",
        "engine/_terminal.py",
        "        while not rows[slot]:\n            slot -= 1\n",
        "",
    ),
    Bug(
        "one frame answers requests of two INFER_MANY",
        "engine/_terminal.py",
        "            and slots.frame[slot + span] == slots.frame[slot]\n",
        "",
    ),
    Bug(
        "a cancelled text keeps its place in the text region",
        "engine/_text.py",
        "            self.free_texts(first, rows)\n            self.announced_rows -= rows\n",
        "            self.announced_rows -= rows\n",
    ),
    Bug(
        "one request of a large body ends the body for all",
        "engine/_arrival.py",
        "self.abandoned = not self.waiting",
        "self.abandoned = True",
    ),
    Bug(
        "what was refused of a large frame is written over the next slots",
        "engine/_lane.py",
        "parts += scratch(pad8(request.rows * nbytes) - admitted * nbytes)",
        "parts += [view[: pad8(request.rows * nbytes) - admitted * nbytes]]",
    ),
    Bug(
        "urgent: a row that overtakes goes before those of its own key",
        "batching/_queue.py",
        "index = bisect_right(ranges, [key_ns, BEHIND_ALL])",
        "index = bisect_right(ranges, [key_ns])",
    ),
    Bug(
        "urgent: an empty queue remembers its last deadline",
        "batching/_queue.py",
        "        if not self.rows:\n            self._tail_ns = LOWEST_NS\n        return taken",
        "        return taken",
    ),
    Bug(
        "urgent: a class is forgotten while a body is received",
        "engine/_lane.py",
        "self.queue.push(first, count, slots.deadline_ns[first], self.offset_of(first))",
        "self.queue.push(first, count, slots.deadline_ns[first])",
    ),
    Bug(
        "urgent: what was not admitted is charged",
        "engine/_columns.py",
        "account.give_back(granted - done)",
        "account.give_back(0)",
    ),
    Bug(
        "urgent: the rule is not told of other models' work",
        "engine/_door.py",
        "self._others_ns(key_ns) if self.neighbours else 0.0",
        "0.0",
    ),
    Bug(
        "urgent: after an overload the fast path stays closed",
        "engine/_executor.py",
        "            lane.door.settle(now_ns)\n",
        "            pass\n",
    ),
    Bug(
        "urgent: a lost worker is still counted as busy",
        "engine/_executor.py",
        "        self.occupancy.in_flight[0] -= 1\n",
        "        pass\n",
    ),
    Bug(
        "a request that is admitted may push another behind its deadline",
        "admission/_rule.py",
        "            elif over_ns <= hopeless_ns:\n                return over_ns\n",
        "            elif over_ns <= hopeless_ns:\n                return 0.0\n",
    ),
    Bug(
        "what will have come by then is not in the batch",
        "admission/_rule.py",
        "size = min(float(full), rest + 1 + int(situation.rate * wait_ns))",
        "size = min(float(full), rest + 1)",
    ),
    Bug(
        "every executor is expected to be free at once",
        "admission/_rule.py",
        "batches, executor = divmod(int(turn), self.executors)",
        "batches, executor = int(turn) // self.executors, 0",
    ),
    Bug(
        "the margin does not grow with the batches ahead",
        "admission/_rule.py",
        "(batches + busy) * full_deviation_ns * full_deviation_ns",
        "busy * full_deviation_ns * full_deviation_ns",
    ),
    Bug(
        "one comparison admits what the rule would not",
        "admission/_rule.py",
        "return reserved <= self.calm_units and deadline_ns - now_ns >= self.calm_ns",
        "return reserved <= self.calm_units",
    ),
    Bug(
        "those who are told to come again all come at once",
        "admission/_rule.py",
        "self._promised_ns = min(promised_ns, now_ns + MAX_RETRY_NS)",
        "self._promised_ns = min(now_ns + excess_ns, now_ns + MAX_RETRY_NS)",
    ),
    Bug(
        "a head is dropped by the quantile of its time, not by the mean",
        "batching/_adaptive.py",
        "alone_ns = start_ns + service.mean_ns(1)\n",
        "alone_ns = start_ns + service.quantile_ns(1)\n",
    ),
    Bug(
        "a batch waits beyond its head's deadline",
        "batching/_adaptive.py",
        "return WaitUntil(min(window_end_ns, slack_end_ns, at_ns))",
        "return WaitUntil(min(window_end_ns, at_ns))",
    ),
    Bug(
        "the window counts from the oldest request, though the executor was busy",
        "batching/_adaptive.py",
        "window_end_ns = max(view.oldest_ready_ns, view.last_completion_ns) + self.window_ns",
        "window_end_ns = view.oldest_ready_ns + self.window_ns",
    ),
    Bug(
        "one who is expected counts as certain",
        "batching/_adaptive.py",
        "        likely += chance\n",
        "        likely += 1.0\n",
    ),
    Bug(
        "a stall is taken for a slow model",
        "batching/_service.py",
        "sample_ns = min(float(run_ns), mean_ns + CLIP * self.k * deviation_ns)",
        "sample_ns = float(run_ns)",
    ),
    Bug(
        "a client that stays away is expected for ever",
        "batching/_returns.py",
        "        for session in lost:\n            del self._away[session]\n",
        "",
    ),
    Bug(
        "promises that were broken by dropping do not count",
        "engine/_scheduler.py",
        "self.margins.promised(near + self._dropped, late + self._dropped)",
        "self.margins.promised(near, late)",
    ),
    *(Bug(**fields) for fields in tomllib.loads(MORE.read_text(encoding="utf-8"))["bug"]),
)


def copy_tree(target: Path) -> None:
    """Copy what the suite needs."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, target / name)


def catcher(tree: Path, bug: Bug) -> str:
    """The test that fails with the mistake in the tree, empty if none does; the tree is as before afterwards."""
    path = tree / "trioserve" / bug.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(sound.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        return failing_test(tree, "not slow") or failing_test(tree, "slow")
    finally:
        path.write_text(sound, encoding="utf-8")


def failing_test(tree: Path, marker: str) -> str:
    """The first test of the suite that fails, of those with a marker."""
    options = [
        "-x",
        "-q",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-m",
        marker,
        "--ignore",
        UNINVOLVED,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *SUITE],
        cwd=tree,
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"the suite did not run: {done.stdout}{done.stderr}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split("::", 1)[1] if failed else ""


def main() -> int:
    """Print a line a mistake; the exit status is how many were not caught."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [bug for bug in BUGS if word in bug.name or word in bug.file]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        for bug in chosen:
            began = time.monotonic()
            test = catcher(Path(folder), bug)
            missed += not test
            took_s = time.monotonic() - began
            print(f"{'caught' if test else 'MISSED'} {took_s:5.1f} s  {bug.name}\n{'':16}{test}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main())
