"""The parser under fire: millions of streams without a server, and every mutant of a header with one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import trio

from trioserve_protocol import (
    HEADER_NBYTES,
    Connection,
    DType,
    FatalError,
    Flag,
    FrameError,
    FrameType,
    Infer,
    InferBegin,
    InferMany,
    Role,
    Signature,
    TensorSpec,
    check_request,
    ping_frame,
)
from trioserve_tools.server_process import ServerProcess

from ._drill import Field, Finding, NotRun, exactly, none_of
from ._ledger import input_rows, output_rows
from ._observe import fds_of, leaks
from ._wire import HANDLE, Reply, infer, wire

Item = TypeVar("Item")

CHECKOUT: Final = Path(__file__).parents[3]
FUZZER: Final = "tests.protocol.fuzz_parser"
WORKERS: Final = 8
TURN_S: Final = 20.0
"""Longest that one mutant may take: reaching it is an outcome that is not defined."""


async def parser_fuzz(field: Field) -> list[Finding]:
    """Runs the fuzzer of the protocol's tests in a process of its own."""
    if not (CHECKOUT / f"{FUZZER.replace('.', '/')}.py").exists():
        raise NotRun("the fuzzer is part of a checkout, not of an installation")
    command = [sys.executable, "-m", FUZZER, "--executions", str(field.count), "--seed", str(field.seed)]
    env = {"PYTHONPATH": ":".join([str(CHECKOUT / "protocol"), *filter(None, sys.path)])}
    done = await trio.run_process(
        command, cwd=CHECKOUT, env=env, capture_stdout=True, capture_stderr=True, check=False
    )
    try:
        record = json.loads(done.stdout)
    except ValueError:
        raise NotRun(f"the fuzzer ended with status {done.returncode}: {done.stderr.decode()}") from None
    if record["failures"]:
        field.progress(f"first failure: {record['first_failure']}")
    return [
        exactly("executions", record["executions"], field.count),
        none_of("other exceptions than a Remote protocol error", record["failures"]),
    ]


# ---------------------------------------------------------------- every mutant of a header

RID: Final = 0x0102_0304_0506_0708
ROWS: Final = 2
PING_RID: Final = 99
INPUTS: Final = input_rows(np.arange(1, ROWS + 1, dtype=np.uint64))
ANSWER: Final = output_rows(np.arange(1, ROWS + 1, dtype=np.uint64)).tobytes()
# A deadline that stays long, whichever of its bytes is changed.
VALID: Final = infer(RID, INPUTS.tobytes(), rows=ROWS, timeout_us=0x3F3F_3F3F)
SIGNATURE: Final = Signature(
    (TensorSpec("x", DType.F32, (-1, 128)),), (TensorSpec("y", DType.F32, (-1, 64)),), max_rows=32
)
MUTANTS: Final = [(offset, value) for offset in range(HEADER_NBYTES) for value in range(256)]

FIELDS: Final = {
    "magic": range(3),
    "type": range(3, 4),
    "body": range(4, 8),
    "rid": range(8, 16),
    "handle": range(16, 18),
    "flags": range(18, 20),
    "tmo": range(20, 24),
    "meta8": range(24, 26),
    "rows": range(26, 28),
    "aux": range(28, 32),
}

OUTCOMES: Final = {
    "magic": {"accepted", "fatal UNSUPPORTED_VERSION"},
    "type": {"accepted", "skipped", "refused UNKNOWN_TYPE", "refused UNKNOWN_FLAG"},
    "body": {"accepted", "fatal INVALID_SIZE", "fatal FRAME_TOO_LARGE", "refused INVALID_SIZE", "waits"},
    "rid": {"accepted"},
    "handle": {"accepted", "refused HANDLE_NOT_BOUND", "refused INVALID_META"},
    "flags": {"accepted", "refused UNKNOWN_TYPE", "refused UNKNOWN_FLAG", "refused CRC_MISMATCH"},
    "tmo": {"accepted"},
    # Payload read as meta: its first bytes may look like the tag of a TLV.
    "meta8": {"accepted", "fatal INVALID_META", "refused INVALID_META", "refused UNKNOWN_TLV"},
    "rows": {"accepted", "refused INVALID_META", "refused INVALID_SIZE", "refused TOO_MANY_ROWS"},
    "aux": {"accepted"},
}
"""What may become of a frame with one changed byte, by the field of the byte."""


async def header_mutants(field: Field) -> list[Finding]:
    """Each mutant on a connection of its own, followed by a PING and the end of the stream."""
    server = field.server
    fds = await fds_of(server)
    chosen = MUTANTS if field.count >= len(MUTANTS) else field.rng().sample(MUTANTS, field.count)
    seen: Counter[str] = Counter()
    strange: list[str] = []

    async def try_one(mutant: tuple[int, int]) -> None:
        offset, value = mutant
        data = bytearray(VALID)
        data[offset] = value
        name = next(name for name, offsets in FIELDS.items() if offset in offsets)
        live, parsed = await live_outcome(server, bytes(data)), parsed_outcome(bytes(data))
        seen[live] += 1
        if live not in OUTCOMES[name] or live != parsed:
            strange.append(f"byte {offset} = {value:#04x} ({name}): {live}, the parser says {parsed}")

    await in_parallel(chosen, try_one)
    for text in strange[:10]:
        field.progress(text)
    return [
        exactly("mutants", sum(seen.values()), len(chosen)),
        none_of("outcomes that are not defined, or not the parser's", len(strange)),
        none_of("leaked", await leaks(server, fds)),
        *(Finding(name, count) for name, count in sorted(seen.items())),
    ]


async def live_outcome(server: ServerProcess, data: bytes) -> str:
    """What a server makes of a frame; the words are those of `OUTCOMES`."""
    replies: list[Reply] = []
    with trio.move_on_after(TURN_S) as turn:
        async with wire(server.port, "double") as connection:
            await connection.send(data + ping_frame(PING_RID))
            await connection.finish_sending()
            while (reply := await connection.receive()) is not None:
                replies.append(reply)
    if turn.cancelled_caught:
        return "no end"
    others = [reply for reply in replies if reply.kind != FrameType.PONG]
    if not others:
        return "skipped" if replies else "waits"
    first = others[0]
    if first.kind == FrameType.ERROR:
        fatal = first.rid == 0 and first is replies[-1] and len(replies) == 1
        return f"{'fatal' if fatal else 'refused'} {first.code}"
    answer = b"".join(reply.payload for reply in others)
    silent = int.from_bytes(data[18:20], "little") & Flag.NOREPLY
    return "accepted" if answer == (b"" if silent else ANSWER) else "wrong answer"


def parsed_outcome(data: bytes) -> str:
    """What the parser and the checks behind it make of a frame that a PING follows."""
    machine = Connection(Role.SERVER)
    events, used = machine.receive(memoryview(data + ping_frame(PING_RID)))
    if not events:
        return "waits" if not used else "skipped"
    event = events[0]
    if isinstance(event, FatalError):
        return f"fatal {event.code.name}"
    if isinstance(event, FrameError):
        return f"refused {event.code.name}"
    if not isinstance(event, Infer | InferMany | InferBegin):
        return "skipped"
    if event.handle != HANDLE:
        return "refused HANDLE_NOT_BOUND"
    nbytes = event.payload_nbytes if isinstance(event, InferBegin) else len(event.payload)
    many = isinstance(event, InferMany) or (
        isinstance(event, InferBegin) and event.frame_type == FrameType.INFER_MANY
    )
    fault = check_request(SIGNATURE, event.rows, nbytes, event.meta, many=many)
    return f"refused {fault.code.name}" if fault else "accepted"


async def in_parallel(items: Iterable[Item], act: Callable[[Item], Awaitable[None]]) -> None:
    """Acts on every item, on `WORKERS` of them at a time."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await act(item)

    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(work)
