"""Fuzzing the pure parser: whatever bytes come, only events come out.

A program, so that the long form can run outside the test suite; it prints one line of JSON:

    python -m tests.protocol.fuzz_parser --executions 1000000 --seed 1

One execution makes a stream of one to four frames, mostly valid ones with a few mutations, cuts it in up to three
chunks and drives a connection and the checks behind it. Any exception other than RemoteProtocolError, and any event
that does not fit the bytes, is a failure.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from struct import pack, pack_into
from typing import Any
from zlib import crc32

from trioserve_protocol import (
    OPTIONAL_REQUEST_TAGS,
    RESULT_TAGS,
    Connection,
    DType,
    ErrorCode,
    FatalError,
    Feature,
    Features,
    Flag,
    FrameError,
    FrameType,
    Infer,
    InferBegin,
    InferMany,
    InferRun,
    Limits,
    PeerLimits,
    RemoteProtocolError,
    Result,
    ResultBegin,
    Role,
    ServerId,
    ShmRef,
    Signature,
    Tag,
    TensorDecl,
    TensorSpec,
    Timing,
    admin_frame,
    bind_frame,
    bound_frame,
    cancel_frame,
    check_bytes_tensor,
    check_request,
    crc_matches,
    credit_frame,
    encode_bytes,
    encode_bytes_fast,
    encode_outputs,
    encode_version,
    error_frame,
    frame,
    frame_bytes,
    goaway_frame,
    parse_meta,
    ping_frame,
    tlv,
)

END = int(Flag.END)
LIMITS = Limits(max_frame_nbytes=1 << 16, max_meta_nbytes=4096, max_control_nbytes=2048)
EVERY = Feature.PARTS | Feature.STREAM | Feature.SHM | Feature.SEQ | Feature.COMPRESS
SIGNATURE = Signature(
    (TensorSpec("x", DType.F32, (-1, 4)), TensorSpec("t", DType.BYTES, (-1,))),
    (TensorSpec("y", DType.F32, (-1, 4)),),
    max_rows=8,
)
INTERESTING = (
    0, 1, 7, 8, 9, 32, 64, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFF8, 0xFFFF_FFFF,
)  # fmt: skip
FIELDS = (
    (0, "<I"), (2, "<B"), (3, "<B"), (4, "<I"), (8, "<Q"), (16, "<H"), (18, "<H"), (20, "<I"), (24, "<H"),
    (26, "<H"), (28, "<I"),
)  # fmt: skip
MASKS = {"<B": 0xFF, "<H": 0xFFFF, "<I": 0xFFFF_FFFF, "<Q": 0xFFFF_FFFF_FFFF_FFFF}


def _data(kind: int, **fields: Any) -> bytes:
    return frame_bytes(frame(kind, **fields))


def _requests() -> tuple[bytes, ...]:
    """Return valid frames of every type that a client sends, with every TLV."""
    texts = [b"what is", b"", b"a model server"]
    fast = encode_bytes_fast(texts)
    declared = tlv(Tag.TENSOR, TensorDecl(DType.F32, (3, 4), 48, 0).encode()) + tlv(
        Tag.TENSOR, TensorDecl(DType.BYTES, (3,), len(fast), name="t", fast=True).encode()
    )
    named = tlv(Tag.MODEL, "echo") + tlv(Tag.VERSION, encode_version(2)) + tlv(Tag.TENANT, "team")
    extras = (
        tlv(Tag.OUTPUTS, encode_outputs([0]))
        + tlv(Tag.TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        + tlv(Tag.PARAMS, '{"a": [1, 2, {"b": null}]}')
        + tlv(0x8123, b"ignorable")
    )
    hello = (
        tlv(Tag.FEATURES, Features(1, 3).encode())
        + tlv(Tag.LIMITS, PeerLimits(1 << 20).encode())
        + tlv(Tag.CLIENT, "fuzz/1")
        + tlv(Tag.AUTH, b"secret")
    )
    region = tlv(Tag.SHMREF, ShmRef(5, 0xFFFF, 0, 0, 4096).encode())
    infer = FrameType.INFER
    return (
        _data(FrameType.HELLO, rid=1, meta=hello),
        bind_frame(2, 1, "echo", tlv(Tag.PARAMS, "{}")),
        _data(FrameType.UNBIND, rid=3, handle=1),
        _data(infer, rid=4, handle=1, flags=END, rows=3, payload=bytes(48) + encode_bytes(texts)),
        _data(infer, rid=4, handle=1, flags=END, rows=3, payload=bytes(64)) * 8,
        _data(infer, rid=5, flags=END, rows=3, meta=named + declared + extras, payload=bytes(48) + fast),
        _data(infer, rid=6, handle=1, flags=END | Flag.CRC, rows=1, aux=crc32(bytes(8)), payload=bytes(8)),
        _data(infer, rid=7, handle=1, flags=0, rows=1, payload=bytes(8)),
        _data(infer, rid=12, handle=1, flags=END, rows=1, payload=bytes(8000)),
        _data(FrameType.INFER_PART, rid=7, flags=END, timeout_us=1, payload=bytes(300)),
        _data(FrameType.INFER_MANY, rid=8, handle=1, flags=END | 3, rows=4, payload=bytes(400)),
        cancel_frame(4, 2),
        _data(FrameType.SHM_REG, rid=9, meta=region),
        _data(FrameType.SHM_UNREG, rid=10, meta=region),
    )


def _replies() -> tuple[bytes, ...]:
    """Return valid frames of every type that a server sends."""
    result = FrameType.RESULT
    timing = tlv(Tag.TIMING, Timing(1, 2, 3).encode())
    return (
        _data(FrameType.WELCOME, rid=1, meta=tlv(Tag.SERVER, ServerId(1, 2, "s").encode())),
        bound_frame(2, 1, SIGNATURE),
        _data(FrameType.UNBIND, rid=3),
        _data(result, rid=4, flags=END, timeout_us=9, rows=3, aux=2, payload=bytes(48)) * 7,
        _data(result, rid=4, flags=END | Flag.SAMPLED, rows=1, meta=timing, payload=bytes(16)),
        _data(FrameType.PARTIAL, rid=4, timeout_us=1, rows=1, payload=bytes(16)),
        _data(FrameType.RESULT_MANY, rid=8, flags=END, rows=4, payload=bytes(400)),
        error_frame(4, ErrorCode.SHED, "busy", retry_after_us=500),
        credit_frame(8, 1 << 20),
        goaway_frame(3, "bye"),
        _data(FrameType.SHM_REG, rid=9),
    )


_BOTH = (
    ping_frame(1, b"12345678"),
    _data(FrameType.PONG, rid=1, payload=bytes(8)),
    admin_frame(11, b'{"what": "statistics"}'),
    _data(0x80, rid=1, payload=bytes(40)),
)
CORPUS = {Role.SERVER: _requests() + _BOTH, Role.CLIENT: _replies() + _BOTH}


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _set_field(rng: random.Random, data: bytearray) -> None:
    offset, form = rng.choice(FIELDS)
    if len(data) >= 32:
        pack_into(form, data, offset, rng.choice(INTERESTING) & MASKS[form])


def _set_word(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data)) & ~3
    data[at : at + 4] = pack("<I", rng.choice(INTERESTING))


def _cut_out(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 8, 32))]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 32)))


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _overwrite, _set_field, _set_field, _set_word, _cut_out, _insert,
)  # fmt: skip


def make_stream(rng: random.Random, role: Role) -> bytes:
    """Return one to four frames for a role, mutated; one stream in 64 is noise, one frame in 16 the other role's."""
    if rng.random() < 1 / 64:
        return rng.randbytes(rng.randrange(1, 200))
    other = Role.CLIENT if role is Role.SERVER else Role.SERVER
    stream = bytearray()
    for _ in range(rng.randrange(1, 5)):
        data = bytearray(rng.choice(CORPUS[other if rng.random() < 1 / 16 else role]))
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            if data:
                rng.choice(MUTATIONS)(rng, data)
        stream += data
    return bytes(stream)


def _check_infer(event: Any, payload: memoryview, *, many: bool) -> None:
    check_request(
        SIGNATURE,
        event.rows,
        len(payload),
        event.meta,
        bound=bool(event.handle),
        many=many,
        extra_tags=OPTIONAL_REQUEST_TAGS,
        limits=LIMITS,
    )
    for fast in (False, True):
        try:
            check_bytes_tensor(payload, event.rows, fast=fast, limits=LIMITS)
        except RemoteProtocolError as error:
            if error.fatal:
                raise AssertionError("a malformed tensor is not fatal") from error


def examine(event: Any) -> str:
    """Check an event the way a server or client would go on with it; returns its name for the statistics."""
    if isinstance(event, InferRun):
        if not event.rids.all() or len(event.rids) != event.count or event.payload.shape[0] != event.count:
            raise AssertionError("a run has an id 0 or columns of other lengths")
        _check_infer(event, memoryview(event.payload[0]), many=False)
    elif isinstance(event, Infer | InferMany):
        _check_infer(event, event.payload, many=isinstance(event, InferMany))
    elif isinstance(event, Result):
        try:
            parse_meta(event.meta, RESULT_TAGS, LIMITS)
        except RemoteProtocolError:
            return "Result with bad meta"
    elif isinstance(event, FrameError):
        return f"FrameError {event.code.name}"
    return type(event).__name__


class Reader:
    """Does what a transport does with one connection, and checks what that relies on."""

    def __init__(self, rng: random.Random, role: Role, seen: Counter[str]) -> None:
        features = rng.choice((Feature(0), EVERY))
        self.connection = Connection(role, LIMITS, large_nbytes=128, vector_from=4, features=features)
        self._rng = rng
        self._seen = seen
        self._pending = b""
        self._in_body = False

    def feed(self, chunk: bytes) -> bool:
        """Take in a chunk; returns False once the stream cannot be read any further."""
        self._pending += chunk
        while self._move_body():
            events, used = self.connection.receive(
                memoryview(self._pending), max_frames=self._rng.choice((1, 3, 256))
            )
            if not 0 <= used <= len(self._pending):
                raise AssertionError(f"{used} of {len(self._pending)} bytes consumed")
            for event in events:
                self._seen[examine(event)] += 1
            self._pending = self._pending[used:]
            if events and isinstance(events[-1], FatalError):
                return False
            if events and isinstance(events[-1], InferBegin | ResultBegin):
                self._decide(events[-1])
            elif not used:
                break
        self._check_rest()
        return True

    def _move_body(self) -> bool:
        """Take what there is of an accepted body; returns whether `receive` may be called."""
        if self._in_body:
            taken = min(len(self._pending), self.connection.body_remaining)
            self._pending = self._pending[taken:]
            self._in_body = not self.connection.body_received(taken)
        return not self._in_body

    def _decide(self, begin: InferBegin | ResultBegin) -> None:
        crc_matches(begin, memoryview(self._pending))
        self._in_body = self._rng.random() < 0.5
        if self._in_body:
            self.connection.accept_body()
        else:
            self.connection.discard_body()

    def _check_rest(self) -> None:
        if len(self._pending) > self.connection.max_pending_nbytes:
            raise AssertionError(f"{len(self._pending)} bytes are held back")
        if self.connection.wanted(len(self._pending)) < 1:
            raise AssertionError("no bytes are wanted")


def run_one(rng: random.Random, stream: bytes, role: Role, seen: Counter[str]) -> None:
    """Let a connection read a stream in up to three chunks."""
    reader = Reader(rng, role, seen)
    edges = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(3)))
    for start, stop in pairwise([0, *edges, len(stream)]):
        if not reader.feed(stream[start:stop]):
            return


def fuzz(executions: int, seed: int) -> dict[str, Any]:
    """Run `executions` streams; returns the record that is printed. It holds the first failing stream, if any."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    started = time.perf_counter()
    for index in range(executions):
        role = rng.choice((Role.SERVER, Role.CLIENT))
        stream = make_stream(rng, role)
        try:
            run_one(rng, stream, role, seen)
        except Exception:  # noqa: BLE001 - any exception at all is the finding
            failures.append(
                {
                    "index": index,
                    "role": role.value,
                    "stream": stream.hex(),
                    "traceback": traceback.format_exc(),
                }
            )
            if len(failures) >= 10:
                break
    return {
        "drill": "fuzz_parser",
        "seed": seed,
        "executions": index + 1 if executions else 0,
        "failures": len(failures),
        "first_failure": failures[0] if failures else None,
        "seconds": round(time.perf_counter() - started, 1),
        "events": dict(seen.most_common()),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    record = fuzz(options.executions, options.seed)
    print(json.dumps(record))
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
