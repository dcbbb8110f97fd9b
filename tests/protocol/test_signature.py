import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve_protocol import (
    DType,
    ErrorCode,
    Limits,
    LocalProtocolError,
    RemoteProtocolError,
    Signature,
    TensorSpec,
    pad8,
)

X = TensorSpec("x", DType.F32, (-1, 3, 5))
Y = TensorSpec("y", DType.U8, (-1,))
TEXT = TensorSpec("text", DType.BYTES, (-1, 2))

names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
specs = st.builds(
    TensorSpec,
    names,
    st.sampled_from(DType),
    st.lists(st.integers(1, 9), max_size=7).map(lambda dims: (-1, *dims)),
)
sides = st.lists(specs, min_size=1, max_size=4, unique_by=lambda spec: spec.name).map(tuple)
signatures = st.builds(Signature, sides, sides, st.integers(1, 2**32 - 1), st.integers(1, 0xFFFF))


def test_sizes_of_a_row() -> None:
    assert (X.row_shape, X.row_elements, X.row_nbytes) == ((3, 5), 15, 60)
    assert (Y.row_shape, Y.row_elements, Y.row_nbytes) == ((), 1, 1)
    assert (TEXT.row_shape, TEXT.row_elements, TEXT.row_nbytes) == ((2,), 2, 0)


def test_payload_sizes_pad_each_tensor() -> None:
    signature = Signature((X, Y), (Y, TEXT))
    assert signature.input_nbytes(3) == pad8(180) + pad8(3)
    assert signature.output_nbytes(9) == 16
    assert signature.fixed_inputs
    assert not signature.fixed_outputs


@settings(max_examples=40, deadline=None)
@given(signatures)
def test_decode_undoes_encode(signature: Signature) -> None:
    value = signature.encode()
    assert len(value) % 8 == 0
    assert Signature.decode(value) == signature


@settings(max_examples=40, deadline=None)
@given(signatures, st.data())
def test_damaged_values_are_refused_or_another_signature(signature: Signature, data: st.DataObject) -> None:
    value = bytearray(signature.encode())
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(0, len(value)))
    for damaged in (bytes(value), bytes(value[:keep]), bytes(value) + bytes(8)):
        try:
            Signature.decode(damaged)
        except RemoteProtocolError as error:
            assert error.code == ErrorCode.INVALID_META  # noqa: PT017 - one of two good outcomes
            assert error.message.startswith("TLV SIGNATURE: ")  # noqa: PT017 - one of two good outcomes


def test_the_number_of_tensors_is_bounded_before_they_are_read() -> None:
    with pytest.raises(RemoteProtocolError, match="more than 32 tensors"):
        Signature.decode(struct.pack("<IHHHHI", 1, 1, 33, 1, 0, 0))
    with pytest.raises(RemoteProtocolError, match="more than 1 tensors"):
        Signature.decode(Signature((X, Y), (X,)).encode(), Limits(max_tensors=1))


@pytest.mark.parametrize(
    "inputs, options, message",
    [
        ((X,), {"version": 0}, "version 0"),
        ((X,), {"version": 1 << 32}, "version"),
        ((X,), {"max_rows": 0}, "max_rows 0"),
        ((X,), {"max_rows": 1 << 16}, "max_rows"),
        ((), {}, "no input"),
        ((X, X), {}, "two inputs of one name"),
        ((X._replace(name="a b"),), {}, "name is not"),
        ((X._replace(name=""),), {}, "name is not"),
        ((X._replace(name="x" * 65),), {}, "name is not"),
        ((X._replace(name="é"),), {}, "name is not"),
        ((X._replace(name="x\n"),), {}, "name is not"),
        ((X._replace(dims=()),), {}, "batch dimension"),
        ((X._replace(dims=(3, 4)),), {}, "batch dimension"),
        ((X._replace(dims=(-1,) * 9),), {}, "more than 8 dimensions"),
        ((X._replace(dims=(-1, -1)),), {}, "not all 1 to"),
        ((X._replace(dims=(-1, 0)),), {}, "not all 1 to"),
        ((X._replace(dims=(-1, 1 << 31)),), {}, "not all 1 to"),
        ((X._replace(dims=(-1, 1 << 16, 1 << 16)),), {}, "more than 2"),
    ],
)
def test_bad_signatures_cannot_be_made(
    inputs: tuple[TensorSpec, ...], options: dict[str, int], message: str
) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        Signature(inputs, (Y,), **options)


def test_an_unknown_dtype_is_refused() -> None:
    value = bytearray(Signature((X,), (Y,)).encode())
    value[16] = 15
    with pytest.raises(RemoteProtocolError, match="no dtype 15"):
        Signature.decode(bytes(value))


def test_outputs_are_checked_too() -> None:
    with pytest.raises(LocalProtocolError, match="no output"):
        Signature((X,), ())
