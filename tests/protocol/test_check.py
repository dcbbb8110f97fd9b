import pytest

from trioserve_protocol import (
    OPTIONAL_REQUEST_TAGS,
    DType,
    ErrorCode,
    Limits,
    Meta,
    RemoteProtocolError,
    Signature,
    Tag,
    TensorDecl,
    TensorSpec,
    check_request,
    encode_outputs,
    parse_request_meta,
    tlv,
)

X = TensorSpec("x", DType.F32, (-1, 3))
TEXT = TensorSpec("text", DType.BYTES, (-1, 2))
FIXED = Signature((X, TensorSpec("n", DType.I8, (-1,))), (X,), max_rows=8)
MIXED = Signature((X, TEXT), (X,), max_rows=8)
MODEL = tlv(Tag.MODEL, "m")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def declared(*decls: TensorDecl) -> bytes:
    return b"".join(tlv(Tag.TENSOR, decl.encode()) for decl in decls)


def code(*args: object, **options: object) -> ErrorCode | None:
    error = check_request(*args, **options)  # type: ignore[arg-type]
    assert error is None or not error.fatal
    return error.code if error else None


def test_a_fixed_signature_needs_no_meta() -> None:
    assert code(FIXED, 2, 24 + 8) is None
    assert code(FIXED, 2, 24) == ErrorCode.INVALID_SIZE


def test_rows_are_bounded_by_the_model_except_in_infer_many() -> None:
    assert code(FIXED, 9, 112 + 16) == ErrorCode.TOO_MANY_ROWS
    assert code(FIXED, 9, 112 + 16, many=True) is None


def test_declared_tensors_must_be_those_of_the_signature() -> None:
    x, n = TensorDecl(DType.F32, (2, 3), 24, 0), TensorDecl(DType.I8, (2,), 2, name="n")
    assert code(FIXED, 2, 32, declared(x, n)) is None
    for meta, wanted in [
        (declared(x), ErrorCode.INVALID_META),
        (declared(n, x), ErrorCode.INVALID_META),
        (declared(x, n._replace(name="m")), ErrorCode.INVALID_META),
        (declared(x._replace(index=1), n), ErrorCode.INVALID_META),
        (declared(x._replace(dtype=DType.I32), n), ErrorCode.INVALID_DTYPE),
        (declared(x._replace(dims=(2, 4)), n), ErrorCode.INVALID_SHAPE),
        (declared(x._replace(dims=(3, 3)), n), ErrorCode.INVALID_SHAPE),
        (declared(x._replace(dims=(2, 3, 1)), n), ErrorCode.INVALID_SHAPE),
        (declared(x._replace(dims=(2**32 - 1,) * 8), n), ErrorCode.INVALID_SHAPE),
        (declared(x._replace(nbytes=25), n), ErrorCode.INVALID_SIZE),
        (declared(x._replace(nbytes=2**64 - 1), n), ErrorCode.INVALID_SIZE),
    ]:
        assert code(FIXED, 2, 32, meta) == wanted
    assert code(FIXED, 2, 40, declared(x, n)) == ErrorCode.INVALID_SIZE


def test_undeclared_bytes_inputs_give_a_least_size() -> None:
    assert code(MIXED, 2, 24 + 16) is None
    assert code(MIXED, 2, 24 + 4096) is None
    assert code(MIXED, 2, 24 + 8) == ErrorCode.INVALID_SIZE


def test_declared_bytes_inputs() -> None:
    x, text = TensorDecl(DType.F32, (2, 3), 24, 0), TensorDecl(DType.BYTES, (2, 2), 19, 1)
    assert code(MIXED, 2, 24 + 24, declared(x, text)) is None
    assert code(MIXED, 2, 24 + 16, declared(x, text._replace(nbytes=15))) == ErrorCode.INVALID_SIZE
    assert code(MIXED, 2, 24 + 24, declared(x, text._replace(fast=True))) == ErrorCode.INVALID_SIZE
    assert code(MIXED, 2, 24 + 24, declared(x, text._replace(fast=True, nbytes=20))) is None


def test_the_number_of_bytes_elements_is_bounded() -> None:
    limits = Limits(max_bytes_elements=3)
    assert code(MIXED, 2, 40, limits=limits) == ErrorCode.INVALID_BYTES
    x, text = TensorDecl(DType.F32, (2, 3), 24, 0), TensorDecl(DType.BYTES, (2, 2), 16, 1)
    assert code(MIXED, 2, 40, declared(x, text), limits=limits) == ErrorCode.INVALID_BYTES


def test_outputs_must_exist() -> None:
    wanted = frozenset({int(Tag.OUTPUTS)})
    assert code(FIXED, 2, 32, tlv(Tag.OUTPUTS, encode_outputs([0])), extra_tags=wanted) is None
    assert (
        code(FIXED, 2, 32, tlv(Tag.OUTPUTS, encode_outputs([1])), extra_tags=wanted) == ErrorCode.INVALID_META
    )


@pytest.mark.parametrize("tag", sorted(OPTIONAL_REQUEST_TAGS))
def test_optional_tlvs_are_not_implemented_unless_the_server_says_so(tag: int) -> None:
    assert code(FIXED, 2, 32, tlv(tag, "{}")) == ErrorCode.UNKNOWN_TLV
    assert code(FIXED, 2, 32, MODEL + tlv(tag, "{}"), bound=False) == ErrorCode.UNKNOWN_TLV


def test_a_bound_request_names_neither_model_nor_tenant() -> None:
    for meta in (MODEL, tlv(Tag.TENANT, "a"), tlv(Tag.VERSION, bytes(4)), tlv(Tag.AUTH, b"a")):
        assert code(FIXED, 2, 32, meta) == ErrorCode.UNKNOWN_TLV
    assert code(FIXED, 2, 32, MODEL + tlv(Tag.TENANT, "a"), bound=False) is None


def test_a_request_without_handle_names_its_model() -> None:
    assert code(FIXED, 2, 32, tlv(Tag.TRACEPARENT, TRACE), bound=False) == ErrorCode.INVALID_META
    with pytest.raises(RemoteProtocolError, match="without TLV MODEL"):
        parse_request_meta(tlv(Tag.TRACEPARENT, TRACE), bound=False)
    assert parse_request_meta(MODEL, bound=False).model == "m"


def test_a_parsed_meta_is_not_parsed_again() -> None:
    meta = parse_request_meta(MODEL, bound=False)
    assert code(FIXED, 2, 32, meta) is None
    assert code(FIXED, 2, 33, meta) == ErrorCode.INVALID_SIZE
    assert parse_request_meta(b"", bound=True) == Meta()
