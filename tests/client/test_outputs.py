import zlib

import numpy as np
import pytest

from tests.client.fake_server import PAIR, SCALE, UPPER, encode_outputs
from trioserve.client._outputs import Body, allocate, decode, parse_reply_meta, zeros
from trioserve_protocol import (
    DType,
    FrameType,
    RemoteProtocolError,
    ResultBegin,
    Tag,
    TensorDecl,
    Timing,
    encode_bytes_fast,
    tlv,
)


def begin(payload_nbytes: int, crc: int | None = None) -> ResultBegin:
    return ResultBegin(FrameType.RESULT, 1, 0, 0, 0, 2, b"", payload_nbytes, crc)


def test_outputs_come_in_the_models_order_and_own_their_memory() -> None:
    sums, flags = np.array([5, 7], np.int64), np.array([[True, False, True]] * 2)
    wire = bytearray(encode_outputs([sums, flags]))
    decoded = decode(PAIR, 2, memoryview(wire))
    wire[:] = bytes(len(wire))
    assert decoded[0].tolist() == [5, 7]
    assert decoded[1].tolist() == flags.tolist()
    assert all(array.flags.writeable for array in decoded)
    assert not any(np.shares_memory(array, np.frombuffer(wire, np.uint8)) for array in decoded)


@pytest.mark.parametrize("fast", [False, True])
def test_bytes_outputs_become_bytes(fast: bool) -> None:  # noqa: FBT001
    elements = [b"A", b"", b"LONG" * 9]
    if fast:
        data = encode_bytes_fast(elements)
        decls: tuple[TensorDecl, ...] = (TensorDecl(DType.BYTES, (3,), len(data), 0, fast=True),)
        payload = data + bytes(-len(data) % 8)
    else:
        payload, decls = encode_outputs([np.array(elements, object)]), ()
    assert decode(UPPER, 3, memoryview(payload), decls)[0].tolist() == elements


@pytest.mark.parametrize("size", [0, 24, 40])
def test_a_payload_of_another_size_is_the_servers_fault(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        decode(SCALE, 2, memoryview(bytes(size)))


def test_declared_tensors_must_be_those_of_the_signature() -> None:
    with pytest.raises(RemoteProtocolError, match="1 tensors, the model has 2"):
        decode(PAIR, 1, memoryview(b""), (TensorDecl(DType.I64, (1,), 8, 0),))
    with pytest.raises(RemoteProtocolError, match="900 bytes, 8 are left"):
        decode(UPPER, 1, memoryview(bytes(8)), (TensorDecl(DType.BYTES, (1,), 900, 0),))


def test_a_body_is_received_into_the_arrays_and_their_padding() -> None:
    outputs = allocate(PAIR, 3)
    wire = encode_outputs([np.arange(3), np.array([[True, False, True]] * 3)])
    body = Body(begin(len(wire)), outputs)
    assert sum(map(len, body.views)) == len(wire)
    assert body.fill_from(memoryview(wire)[:5]) == 5
    position = 5
    while body.views:
        part = wire[position : position + 7]
        body.views[0][: len(part)] = part[: len(body.views[0])]
        step = min(len(part), len(body.views[0]))
        body.advance(step)
        position += step
    assert position == len(wire)
    assert outputs[0].tolist() == [0, 1, 2]
    assert outputs[1].tolist() == [[True, False, True]] * 3


def test_one_read_may_fill_several_views() -> None:
    outputs = allocate(PAIR, 1)
    body = Body(begin(16), outputs)
    body.advance(11)
    assert list(map(len, body.views)) == [5]
    body.advance(5)
    assert body.views == []


def test_a_body_with_a_checksum_has_one_buffer_and_is_checked() -> None:
    wire = encode_outputs([np.arange(8, dtype=np.float32).reshape(2, 4)])
    body = Body(begin(len(wire), zlib.crc32(wire)), None)
    assert body.fill_from(memoryview(wire + b"next")) == len(wire)
    assert decode(SCALE, 2, body.whole_payload())[0][1].tolist() == [4, 5, 6, 7]
    wrong = Body(begin(len(wire), 1), None)
    wrong.fill_from(memoryview(wire))
    with pytest.raises(RemoteProtocolError, match="CRC-32"):
        wrong.whole_payload()


def test_columns_for_many_results_hold_no_old_memory() -> None:
    sums, flags = zeros(PAIR, 3)
    assert sums.tolist() == [0, 0, 0]
    assert not flags.any()
    assert zeros(UPPER, 2)[0].tolist() == [None, None]


def test_the_meta_of_a_reply_may_say_when_each_phase_ended() -> None:
    assert parse_reply_meta(b"") == (None, ())
    timing = Timing(received_ns=5, sent_ns=9)
    decl = TensorDecl(DType.F32, (1, 4), 16, 0)
    assert parse_reply_meta(tlv(Tag.TENSOR, decl.encode()) + tlv(Tag.TIMING, timing.encode())) == (
        timing,
        (decl,),
    )
