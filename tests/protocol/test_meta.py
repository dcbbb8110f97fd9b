import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve_protocol import (
    Compress,
    DType,
    ErrorCode,
    Features,
    Limits,
    Meta,
    PeerLimits,
    RemoteProtocolError,
    SeqId,
    ServerId,
    ShmRef,
    Signature,
    Tag,
    TensorDecl,
    TensorSpec,
    Timing,
    encode_outputs,
    encode_version,
    parse_meta,
    tag_label,
    tlv,
)

SIGNATURE = Signature((TensorSpec("x", DType.F32, (-1, 4)),), (TensorSpec("y", DType.BYTES, (-1,)),))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMING = Timing(*range(1, 16))
EVERYTHING = [
    (Tag.MODEL, b"echo", "model", "echo"),
    (Tag.VERSION, encode_version(7), "version", 7),
    (Tag.OUTPUTS, encode_outputs([0, 2]), "outputs", (0, 2)),
    (Tag.TRACEPARENT, TRACE.encode(), "traceparent", TRACE),
    (Tag.TENANT, b"team-a", "tenant", "team-a"),
    (Tag.PARAMS, b'{"a": [1, "\xc3\xa9"]}', "params", {"a": [1, "é"]}),
    (Tag.SEQ_ID, SeqId(9, 3).encode(), "sequence", SeqId(9, 3)),
    (Tag.COMPRESS, Compress(3, 1 << 40).encode(), "compress", Compress(3, 1 << 40)),
    (Tag.AUTH, b"\x00\xff", "auth", b"\x00\xff"),
    (Tag.ERRMSG, "schade: ü".encode(), "message", "schade: ü"),
    (Tag.FEATURES, Features(1, 1 << 63).encode(), "features", Features(1, 1 << 63)),
    (Tag.LIMITS, PeerLimits(*range(8)).encode() + bytes(4), "limits", PeerLimits(*range(8))),
    (Tag.SIGNATURE, SIGNATURE.encode(), "signature", SIGNATURE),
    (Tag.TIMING, TIMING.encode() + bytes(8), "timing", TIMING),
    (Tag.CLIENT, b"trioserve-py/1", "client", "trioserve-py/1"),
    (Tag.SERVER, ServerId(5, 6, "srv").encode(), "server", ServerId(5, 6, "srv")),
    (
        Tag.TENSOR,
        TensorDecl(DType.I8, (2, 3), 6, 0).encode(),
        "tensors",
        (TensorDecl(DType.I8, (2, 3), 6, 0),),
    ),
    (Tag.SHMREF, ShmRef(1, 0, 1, 64, 32).encode(), "shmrefs", (ShmRef(1, 0, 1, 64, 32),)),
]


def code_of_fault(meta: bytes, **options: object) -> ErrorCode:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_meta(meta, **options)  # type: ignore[arg-type]
    assert not caught.value.fatal
    return caught.value.code


@pytest.mark.parametrize("tag, value, field, wanted", EVERYTHING)
def test_every_tlv_alone(tag: Tag, value: bytes, field: str, wanted: object) -> None:
    found = parse_meta(tlv(tag, value))
    assert getattr(found, field) == wanted
    setattr(found, field, getattr(Meta(), field))
    assert found == Meta()


def test_all_tlvs_together_in_any_order() -> None:
    for order in (EVERYTHING, EVERYTHING[::-1]):
        found = parse_meta(b"".join(tlv(tag, value) for tag, value, _, _ in order))
        assert all(getattr(found, field) == wanted for _, _, field, wanted in EVERYTHING)


def test_no_meta_is_no_tlvs() -> None:
    assert parse_meta(b"") == Meta()


def test_tlvs_are_padded_to_eight_bytes() -> None:
    assert tlv(1, "echo") == bytes.fromhex("0100 0000 04000000 6563686f 00000000")
    assert tlv(2, b"", 3) == bytes.fromhex("0200 0300 00000000")


def test_padding_is_not_looked_at() -> None:
    assert parse_meta(tlv(1, "echo")[:-4] + b"junk").model == "echo"


def test_repeatable_tlvs_keep_their_order() -> None:
    decls = [TensorDecl(DType.F32, (1,), 4, index) for index in range(3)]
    refs = [ShmRef(1, index, 0, 0, 8) for index in range(3)]
    found = parse_meta(
        b"".join(
            tlv(Tag.TENSOR, d.encode()) + tlv(Tag.SHMREF, r.encode())
            for d, r in zip(decls, refs, strict=True)
        )
    )
    assert found.tensors == tuple(decls)
    assert found.shmrefs == tuple(refs)


@pytest.mark.parametrize("tag, value", [row[:2] for row in EVERYTHING[:-2]])
def test_other_tlvs_must_not_stand_twice(tag: Tag, value: bytes) -> None:
    assert code_of_fault(tlv(tag, value) * 2) == ErrorCode.INVALID_META


def test_unknown_tlvs_must_be_understood_unless_ignorable() -> None:
    assert code_of_fault(tlv(99, b"")) == ErrorCode.UNKNOWN_TLV
    assert code_of_fault(tlv(0, b"")) == ErrorCode.UNKNOWN_TLV
    assert parse_meta(tlv(0x8063, b"abc", 7) * 2 + tlv(1, "m")).model == "m"


def test_a_tlv_that_is_not_defined_for_the_frame_is_unknown_there() -> None:
    assert code_of_fault(tlv(Tag.TENANT, "a"), allowed=frozenset({1})) == ErrorCode.UNKNOWN_TLV
    assert parse_meta(tlv(Tag.MODEL, "a"), frozenset({1})).model == "a"


def test_flags_of_a_tlv_must_be_understood() -> None:
    assert code_of_fault(tlv(1, "echo", 1)) == ErrorCode.UNKNOWN_TLV


TENSOR = TensorDecl(DType.F32, (2, 3), 24, 0)


def tensor(value: bytes) -> bytes:
    return tlv(Tag.TENSOR, value)


@pytest.mark.parametrize(
    "meta, code",
    [
        (bytes(4), ErrorCode.INVALID_META),
        (b"\x01\0\0\0\xff\xff\xff\xff", ErrorCode.INVALID_META),
        (b"\x01\0\0\0\x09\0\0\0" + bytes(8), ErrorCode.INVALID_META),
        (tlv(Tag.MODEL, ""), ErrorCode.INVALID_META),
        (tlv(Tag.MODEL, "../x"), ErrorCode.INVALID_META),
        (tlv(Tag.MODEL, "x" * 65), ErrorCode.INVALID_META),
        (tlv(Tag.MODEL, "é"), ErrorCode.INVALID_META),
        (tlv(Tag.TENANT, "a b"), ErrorCode.INVALID_META),
        (tlv(Tag.VERSION, b"1"), ErrorCode.INVALID_META),
        (tlv(Tag.OUTPUTS, b""), ErrorCode.INVALID_META),
        (tlv(Tag.OUTPUTS, b"abc"), ErrorCode.INVALID_META),
        (tlv(Tag.OUTPUTS, encode_outputs([1, 1])), ErrorCode.INVALID_META),
        (tlv(Tag.OUTPUTS, encode_outputs(range(33))), ErrorCode.INVALID_META),
        (tlv(Tag.TRACEPARENT, TRACE.upper()), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, "[]"), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, "{"), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, '{"a": NaN}'), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, b"\xff"), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, '{"a":' + "[" * 60_000), ErrorCode.INVALID_META),
        (tlv(Tag.PARAMS, '{"a":' + "9" * 5000 + "}"), ErrorCode.INVALID_META),
        (tlv(Tag.SEQ_ID, bytes(8)), ErrorCode.INVALID_META),
        (tlv(Tag.SEQ_ID, SeqId(1, 4).encode()), ErrorCode.INVALID_META),
        (tlv(Tag.COMPRESS, bytes(8)), ErrorCode.INVALID_META),
        (tlv(Tag.AUTH, b""), ErrorCode.INVALID_META),
        (tlv(Tag.AUTH, bytes(4097)), ErrorCode.INVALID_META),
        (tlv(Tag.ERRMSG, b"\xff"), ErrorCode.INVALID_META),
        (tlv(Tag.ERRMSG, bytes(1025)), ErrorCode.INVALID_META),
        (tlv(Tag.CLIENT, bytes(1025)), ErrorCode.INVALID_META),
        (tlv(Tag.FEATURES, bytes(8)), ErrorCode.INVALID_META),
        (tlv(Tag.LIMITS, bytes(31)), ErrorCode.INVALID_META),
        (tlv(Tag.SIGNATURE, bytes(8)), ErrorCode.INVALID_META),
        (tlv(Tag.TIMING, bytes(103)), ErrorCode.INVALID_META),
        (tlv(Tag.SERVER, bytes(15)), ErrorCode.INVALID_META),
        (tlv(Tag.SHMREF, bytes(16)), ErrorCode.INVALID_META),
        (tlv(Tag.SHMREF, ShmRef(1, 0, 2, 0, 8).encode()), ErrorCode.INVALID_META),
        (tlv(Tag.SHMREF, ShmRef(1, 0, 0, 2**64 - 8, 9).encode()), ErrorCode.INVALID_META),
        (tensor(bytes(15)), ErrorCode.INVALID_META),
        (tensor(TENSOR.encode()[:20]), ErrorCode.INVALID_META),
        (tensor(TENSOR.encode() + b"x"), ErrorCode.INVALID_META),
        (tensor(TENSOR._replace(index=0xFFFF).encode()), ErrorCode.INVALID_META),
        (tensor(TENSOR._replace(fast=True).encode()), ErrorCode.INVALID_META),
        (tensor(b"\x0d\x01\0\0\x02\0\0\0" + bytes(12)), ErrorCode.INVALID_META),
        (tensor(b"\0" + TENSOR.encode()[1:]), ErrorCode.INVALID_DTYPE),
        (tensor(b"\x0f" + TENSOR.encode()[1:]), ErrorCode.INVALID_DTYPE),
        (tensor(b"\x0b\0" + TENSOR.encode()[2:]), ErrorCode.INVALID_SHAPE),
        (tensor(b"\x0b\x09" + TENSOR.encode()[2:] + bytes(64)), ErrorCode.INVALID_SHAPE),
        (tensor(TENSOR.encode()) * 33, ErrorCode.INVALID_META),
        (tlv(Tag.SHMREF, ShmRef(1, 0, 0, 0, 8).encode()) * 65, ErrorCode.INVALID_META),
        (tlv(0x8001, b"") * 129, ErrorCode.INVALID_META),
    ],
)
def test_malformed_meta(meta: bytes, code: ErrorCode) -> None:
    assert code_of_fault(meta) == code


def test_the_number_of_tlvs_is_a_limit() -> None:
    assert parse_meta(tlv(0x8001, b"") * 128) == Meta()
    assert code_of_fault(tlv(0x8001, b"") * 2, limits=Limits(max_tlvs=1)) == ErrorCode.INVALID_META


def test_named_tensors() -> None:
    decl = TensorDecl(DType.BYTES, (4,), 100, name="text", fast=True)
    assert parse_meta(tensor(decl.encode())).tensors == (decl,)


def test_a_servers_name_need_not_be_utf8() -> None:
    server = parse_meta(tlv(Tag.SERVER, bytes(16) + b"\xff")).server
    assert server is not None
    assert server.name == "\ufffd"


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=9), st.none() | st.integers() | st.text(max_size=9), max_size=4))
def test_params_carry_any_json_object(params: dict[str, object]) -> None:
    assert parse_meta(tlv(Tag.PARAMS, json.dumps(params))).params == params


@given(st.binary(max_size=200).map(lambda data: data + bytes(-len(data) % 8)))
def test_arbitrary_bytes_give_a_meta_or_a_remote_error(data: bytes) -> None:
    try:
        parse_meta(data)
    except RemoteProtocolError as error:
        assert error.code.grpc in {3, 12}  # noqa: PT017 - one of two good outcomes


def test_labels_of_tags() -> None:
    assert tag_label(3) == "TENSOR"
    assert tag_label(0x8063) == "0x8063"
