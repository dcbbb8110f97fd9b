"""All drills, in the order in which they are run."""

from __future__ import annotations

from typing import Final

from . import _bytes, _floods, _kills, _parser, _slow
from ._drill import Drill

DRILLS: Final = (
    Drill(
        "parser-fuzz",
        "mutated and random streams into the bare parser",
        "events or a Remote protocol error, nothing else",
        1_000_000,
        2_000,
        _parser.parser_fuzz,
    ),
    Drill(
        "header-mutants",
        "every single-byte mutant of an INFER header",
        "an outcome of the table, the same as the parser's",
        len(_parser.MUTANTS),
        128,
        _parser.header_mutants,
    ),
    Drill(
        "oversize-length",
        "headers that announce 64 MiB to 4 GiB",
        "refused from the header, nothing allocated, connection closed",
        1_000,
        20,
        _bytes.oversize,
    ),
    Drill(
        "garbage",
        "HTTP, TLS, other versions and noise on the plain port",
        "a readable hint or one ERROR, then closed",
        10_000,
        80,
        _bytes.garbage,
    ),
    Drill(
        "poisoned-row",
        "one row in a batch of 32 makes the model raise",
        "31 right answers and one typed error",
        200,
        5,
        _bytes.poisoned_row,
    ),
    Drill(
        "deadlines",
        "deadlines of 20 ms inside and behind a batch of 2 s",
        "answered at 20 ms",
        10,
        1,
        _slow.deadlines,
    ),
    Drill(
        "cancel-flood",
        "INFER and CANCEL in a loop, as fast as the connection goes",
        "each answered once; others hardly notice",
        10_000,
        600,
        _floods.cancel_flood,
    ),
    Drill(
        "disconnect-storm",
        "connections reset, closed or half-closed at any byte",
        "nothing leaks; a half-closed one still gets its replies",
        20_000,
        100,
        _floods.disconnect_storm,
    ),
    Drill(
        "slowloris",
        "headers that arrive at a byte a second",
        "closed after the stall limit; others hardly notice",
        5_000,
        100,
        _slow.slowloris,
    ),
    Drill(
        "deaf-reader",
        "a client that asks for 64 MiB and reads nothing",
        "bounded memory, closed after the soft limit's time",
        3,
        1,
        _slow.deaf_reader,
    ),
    Drill(
        "idle-connections",
        "connections that are open and do nothing",
        "little memory, no wake-up",
        10_000,
        200,
        _slow.idle,
    ),
    Drill(
        "executor-kill",
        "kill -9 of the executor at 5,000 requests a second",
        "retryable errors at once, no wrong or second answer, a new executor",
        50,
        1,
        _kills.executor_kill,
    ),
    Drill(
        "sigterm",
        "SIGTERM at 5,000 requests a second",
        "what was taken is answered, the rest is handed back; status 0",
        20,
        1,
        _kills.sigterm,
    ),
    Drill(
        "front-kill",
        "kill -9 of the front at 5,000 requests a second",
        "no process is left behind",
        20,
        1,
        _kills.front_kill,
    ),
)
