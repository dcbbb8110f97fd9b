"""Texts: admitted as bytes, tokenized in bursts, run in batches of one length bucket."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.engine.conftest import MakeWorld
from tests.engine.play_models import text_config
from tests.engine.world import MS, World
from trioserve.batching import ServiceModel
from trioserve.config import BatchingConfig, ServerLimits
from trioserve_protocol import (
    DType,
    ErrorCode,
    Flag,
    ResultMany,
    Tag,
    TensorDecl,
    Timing,
    encode_bytes,
    encode_bytes_fast,
    tlv,
)

OK = ErrorCode.OK


def declared(payload: bytes, rows: int, *, fast: bool) -> bytes:
    return tlv(Tag.TENSOR, TensorDecl(DType.BYTES, (rows,), len(payload), 0, fast=fast).encode())


def test_a_text_is_tokenized_and_run(world: World) -> None:
    client = world.client()
    client.texts(1)
    world.turn()
    assert world.tokenizer.ranges() == [[(0, 1)]]
    assert not world.executor.sent
    world.tokenizer.finish()
    world.turn()
    assert world.executor.ranges() == [[(0, 1)]]
    assert world.executor.sent[0].lengths.tolist() == [5]
    world.settle()
    assert client.codes() == [OK]


def test_the_rows_of_a_request_stay_together(world: World) -> None:
    client = world.client()
    client.texts(1, [3, 30, 5])
    client.texts(2, [4])
    world.settle()
    assert client.codes() == [OK, OK]
    assert [batch.ranges for batch in world.executor.batches] == [((0, 3),), ((3, 1),)]
    assert client.replies[1].frame.rows == 3


def test_the_texts_of_a_turn_are_one_burst(world: World) -> None:
    one, two = world.client(), world.client()
    one.texts(1)
    two.texts(1, [2, 3])
    one.texts(2, [4, 5], many=True)
    world.turn()
    assert world.tokenizer.ranges() == [[(0, 1), (1, 2), (3, 1), (4, 1)]]
    world.settle()
    assert (one.codes(), two.codes()) == ([OK, OK, OK], [OK])


def test_texts_of_one_infer_many_are_answered_together(world: World) -> None:
    client = world.client()
    client.texts(1, [5, 6, 7, 8], many=True)
    client.texts(11, [5, 30, 6], many=True)
    world.settle()
    assert set(client.codes()) == {OK}
    assert [(frame.rid, frame.rows) for frame in client.frames if isinstance(frame, ResultMany)] == [
        (1, 4), (11, 1), (13, 1), (12, 1)
    ]  # fmt: skip


def test_runs_of_texts_go_one_by_one(world: World) -> None:
    client = world.client()
    payloads = [client.text_body(rid, [5], many=False) for rid in range(1, 9)]
    assert len({len(payload) for payload in payloads}) == 1
    frames: list[bytes] = []
    sent, client.send = client.send, frames.append  # type: ignore[assignment, method-assign]
    for rid in range(1, 9):
        client.texts(rid)
    sent(b"".join(frames))
    world.settle()
    assert client.codes() == [OK] * 8


@pytest.mark.parametrize("handle", [0, None])
@pytest.mark.parametrize("many", [False, True])
def test_the_fast_form(world: World, handle: int | None, *, many: bool) -> None:
    client = world.client()
    payload = client.text_body(1, [3, 4, 5], many=many, encode=encode_bytes_fast)
    meta = declared(payload, 3, fast=True)
    if handle == 0:
        meta = tlv(Tag.MODEL, "text") + meta
    client.texts(1, [3, 4, 5], many=many, payload=payload, meta=meta, handle=handle)
    world.settle()
    assert set(client.codes()) == {OK}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\xff\0\0\0abcd", ErrorCode.INVALID_BYTES),
        (encode_bytes([b"5 of 5 tokens", b"x" * 4097]), ErrorCode.INVALID_BYTES),
        (encode_bytes([b"5 of 5 tokens"] * 2) + bytes(16), ErrorCode.INVALID_SIZE),
        (b"", ErrorCode.INVALID_BYTES),
    ],
)
def test_payloads_that_are_no_texts(world: World, payload: bytes, code: ErrorCode, *, many: bool) -> None:
    client = world.client()
    client.text_body(1, [5, 5], many=many)
    client.texts(1, [5, 5], many=many, payload=payload)
    assert set(client.codes()) <= {code, ErrorCode.INVALID_SIZE}
    assert None not in client.codes()
    assert world.text.texts.taken == 0
    world.check_rest()


def test_more_rows_than_a_batch(world: World) -> None:
    client = world.client()
    client.texts(1, [5] * 5)
    assert client.code(1) == ErrorCode.TOO_MANY_ROWS
    client.texts(10, [5] * 5, many=True)
    assert client.codes(range(10, 15)) == [None] * 5


def test_shed_when_there_are_no_slots(world: World) -> None:
    client = world.client()
    client.texts(1, [5] * 14, many=True)
    client.texts(20, [5] * 3)
    client.texts(30, [5] * 4, many=True)
    assert client.code(20) == ErrorCode.SHED
    assert client.codes(range(30, 34)) == [None, None, ErrorCode.SHED, ErrorCode.SHED]
    assert world.text.texts.taken == 16
    world.check()


def test_shed_when_the_text_region_is_full(crammed: World) -> None:
    client = crammed.client()
    client.texts(1, [5])
    client.texts(10, [5] * 4, many=True)
    assert client.codes(range(10, 14)) == [None, None, ErrorCode.SHED, ErrorCode.SHED]
    client.texts(2, [5, 5])
    assert client.code(2) == ErrorCode.SHED
    assert crammed.text.texts.taken == 3
    crammed.settle()
    assert client.codes((1, 10, 11)) == [OK] * 3
    client.texts(20, [5, 5, 5])
    crammed.settle()
    assert client.code(20) == OK


def test_the_window_counts_texts(make_world: MakeWorld) -> None:
    world = make_world(limits=ServerLimits(credit_requests=3))
    client = world.client()
    client.texts(1, [5] * 5, many=True)
    client.texts(11)
    client.texts(21, [5], many=True)
    assert client.codes() == [None] * 5 + [ErrorCode.CREDIT_EXCEEDED] * 2
    world.settle()
    client.texts(31)
    client.texts(41, [5] * 3, many=True)
    assert client.codes((31, 41, 42, 43)) == [None] + [ErrorCode.CREDIT_EXCEEDED] * 3


# ---------------------------------------------------------------- answered on the way


def test_cancelled_before_the_tokenizer(world: World) -> None:
    client = world.client()
    client.texts(1, [3, 4])
    client.texts(2)
    client.cancel(1)
    assert world.text.texts.taken == 1
    world.settle()
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT, OK]


def test_cancelled_in_the_tokenizer(world: World) -> None:
    client = world.client()
    client.texts(1, [3, 4])
    client.texts(2)
    world.turn()
    client.cancel(1)
    assert world.text.slots.leased == 3
    world.settle()
    assert client.codes() == [ErrorCode.CANCELLED_BY_CLIENT, OK]
    assert [batch.ranges for batch in world.executor.batches] == [((2, 1),)]


def test_cancelled_between_tokenizer_and_executor(world: World) -> None:
    client = world.client()
    client.infer(100)
    world.turn()
    client.texts(1)
    client.texts(2)
    world.turn()
    world.tokenizer.finish()
    assert world.text.queue.rows == 2
    client.cancel(1)
    assert world.text.queue.rows == 1
    world.settle()
    assert client.codes((1, 2)) == [ErrorCode.CANCELLED_BY_CLIENT, OK]


@pytest.mark.parametrize("stage", ["waiting", "tokenizer", "queue", "executor"])
def test_expired_at_every_stage(world: World, stage: str) -> None:
    """Only what the executor has had counts as executed."""
    client = world.client()
    if stage != "executor":
        client.infer(100)
        world.turn()
    if stage == "waiting":
        world.tokenizer_stage.lose("gone")
    client.texts(1, timeout_us=1000)
    world.turn()
    if stage in {"queue", "executor"}:
        world.tokenizer.finish()
        world.turn()
    world.pass_time(2 * MS)
    executed = stage == "executor"
    code = ErrorCode.DEADLINE_AFTER_EXECUTION if executed else ErrorCode.DEADLINE_IN_QUEUE
    assert client.code(1) == code
    world.check()


def test_times_of_a_text(world: World) -> None:
    client = world.client()
    begun_ns = world.clock.ns
    client.texts(1, flags=int(Flag.SAMPLED))
    world.turn()
    world.clock.ns += MS
    world.tokenizer.finish()
    world.clock.ns += MS
    world.turn()
    world.clock.ns += MS
    world.executor.finish()
    reply = client.replies[1].frame
    timing = Timing.decode(reply.meta[8:])
    assert (timing.received_ns, timing.tokenized_ns) == (begun_ns, begun_ns + MS)
    assert (timing.ready_ns, timing.batched_ns) == (begun_ns + MS, begun_ns + 2 * MS)
    assert (reply.server_us, reply.queue_us) == (3000, 1000)


# ---------------------------------------------------------------- batches by length and tokens


def test_batches_are_of_one_length_bucket(world: World) -> None:
    client = world.client()
    for rid, tokens in enumerate([5, 20, 6, 21], 1):
        client.texts(rid, [tokens])
    world.settle()
    lengths = [batch.lengths.tolist() for batch in world.executor.batches]
    assert lengths == [[5, 6], [20, 21]]


def test_a_bucket_that_is_not_full_stays_open_behind_a_busy_executor(make_world: MakeWorld) -> None:
    """Rows of other buckets do not make it full."""
    world = make_world(depth=2)
    world.text.service = ServiceModel({8: 10 * MS, 16: 10 * MS})
    client = world.client()
    client.texts(1, [5])
    world.turn()
    world.tokenizer.finish()
    world.turn()
    for rid, tokens in enumerate([6, 20, 21, 22, 23], 2):
        client.texts(rid, [tokens])
    world.turn()
    world.tokenizer.finish()
    world.turn()
    assert len(world.executor.sent) == 1
    world.settle()
    assert [batch.lengths.tolist() for batch in world.executor.batches][1:] == [[6], [20, 21, 22, 23]]


def test_a_batch_is_full_by_its_tokens(make_world: MakeWorld) -> None:
    config = text_config(batching={"max_tokens": 24})
    world = make_world(configs=[config], depth=2)
    world.text.service = ServiceModel({8: MS // 2, 16: MS // 2})
    client = world.client("text")
    client.texts(1, [5])
    world.turn()
    world.tokenizer.finish()
    world.turn()
    for rid in range(2, 6):
        client.texts(rid, [8])
    world.turn()
    world.tokenizer.finish()
    world.turn()
    assert [batch.rows for batch in world.executor.sent] == [1, 3]


@pytest.mark.parametrize(("layout", "units"), [("padded", 3 * 7), ("packed", 3 + 7 + 5)])
def test_service_time_is_counted_in_tokens(make_world: MakeWorld, layout: str, units: int) -> None:
    config = text_config()
    batching = BatchingConfig(max_rows=4, buckets=[32], layout="packed" if layout == "packed" else "padded")
    world = make_world(configs=[replace(config, batching=batching)])
    lane = world.text
    lane.service = ServiceModel({10: 1_010, 20: 1_020})
    client = world.client("text")
    client.texts(1, [3, 7, 5])
    world.turn()
    world.tokenizer.finish()
    world.turn()
    assert world.executor_stage.free_ns == world.clock.ns + 1_000 + units
    world.executor.finish(took_ns=1_000 + units)
    assert lane.service.mean_ns(20) == 1_020


def test_the_usual_row_is_learned_in_tokens(make_world: MakeWorld) -> None:
    config = text_config(batching={"max_tokens": 64, "buckets": [8, 32]})
    world = make_world(configs=[config])
    lane = world.text
    lane.service = ServiceModel({10: 1_010, 20: 1_020})
    assert lane.scheduler.units_per_row == 8.0
    client = world.client("text")
    for number in range(60):
        client.texts(number + 1, [30, 31])
        world.settle()
    assert lane.scheduler.units_per_row == pytest.approx(31, rel=0.05)
    lane.service = ServiceModel({10: 1_010, 20: 1_020})
    assert lane.scheduler.row_ns == pytest.approx((1_000 + 4 * 31) / 4, rel=0.05)
    client.texts(1000, [30])
    world.turn()
    world.tokenizer.finish()
    assert lane.scheduler.view(0, world.clock.ns).per_row_ns == pytest.approx(31, rel=0.05)


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_a_text_that_was_not_tokenized_in_time_breaks_no_promise(
    world: World,
    with_tokenizer: bool,  # noqa: FBT001 - a parameter
) -> None:
    """It lacked more than an executor."""
    lane, client = world.text, world.client()
    lane.scheduler._tense_ns = world.clock.ns
    client.texts(1, timeout_us=20_000)
    if with_tokenizer:
        world.turn()
        world.clock.ns += 30 * MS
        world.turn()
    else:
        world.clock.ns += 30 * MS
        world.engine.expire(world.clock.ns)
    assert not client.waiting
    assert lane.scheduler._dropped == 0
    world.settle()
