from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve.client._inputs import guess, prepare, prepare_columns
from trioserve.errors import InvalidArgument, InvalidDtype, InvalidShape, TooManyRows
from trioserve_protocol import DType, Signature, TensorSpec, check_request, encode_bytes

Y = (TensorSpec("y", DType.F32, (-1,)),)


def one(dtype: DType, *row: int, max_rows: int = 8) -> Signature:
    return Signature((TensorSpec("x", dtype, (-1, *row)),), Y, max_rows=max_rows)


F4 = one(DType.F32, 4)
TEXT = one(DType.BYTES)
PAIR = Signature((TensorSpec("a", DType.F32, (-1, 2)), TensorSpec("b", DType.I32, (-1,))), Y)


def test_an_array_of_the_right_kind_is_sent_from_its_own_memory() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    prepared = prepare(x, F4)
    assert (prepared.rows, prepared.single, prepared.nbytes) == (2, False, 32)
    x[0, 0] = 77
    assert np.frombuffer(prepared.tensors[0].data, np.float32)[0] == 77


def test_the_batch_dimension_may_be_left_out() -> None:
    prepared = prepare(np.zeros(4, np.float32), F4)
    assert (prepared.rows, prepared.single, prepared.tensors[0].dims) == (1, True, (1, 4))
    scalar = prepare(5, one(DType.I64))
    assert (scalar.rows, scalar.single, bytes(scalar.tensors[0].data)) == (1, True, np.int64(5).tobytes())


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2, 3, 4], DType.F32),
        ([1.0, 2, 3, 4], DType.F32),
        (np.arange(1, 5, dtype=np.float64), DType.F32),
        (np.arange(1, 5, dtype=">f4"), DType.F32),
        (np.arange(1, 5, dtype=np.int16), DType.F32),
        ([1, 2, 3, 4], DType.U8),
        ((1, 2, 3, 4), DType.I64),
        (np.arange(1, 5, dtype=np.int64), DType.I32),
        (np.arange(1, 9, dtype=np.float32)[::2] * 0 + np.arange(1, 5), DType.F32),
        (np.arange(1, 5, dtype=np.float64), DType.F16),
        ([1, 2, 3, 4], DType.BF16),
    ],
)
def test_other_values_are_converted_once(value: Any, dtype: DType) -> None:
    prepared = prepare(value, one(dtype, 4))
    sent = np.frombuffer(prepared.tensors[0].data, dtype.numpy)
    assert sent.tolist() == [1, 2, 3, 4]


def test_a_strided_array_is_made_contiguous() -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 8)[:, ::2]
    sent = np.frombuffer(prepare(x, F4).tensors[0].data, np.float32)
    assert sent.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (np.zeros(4, np.float32), DType.I32, InvalidDtype),
        ([1.5, 2, 3, 4], DType.I32, InvalidDtype),
        (np.zeros(4, np.int64), DType.U8, InvalidDtype),
        (np.zeros(4, np.float32), DType.BF16, InvalidDtype),
        (np.zeros(4, np.float32), DType.BOOL, InvalidDtype),
        (["a", "b", "c", "d"], DType.F32, InvalidDtype),
        ([300, 0, 0, 0], DType.U8, InvalidArgument),
        ([[1, 2], [3]], DType.F32, InvalidArgument),
        (np.zeros(5, np.float32), DType.F32, InvalidShape),
        (np.zeros((2, 2, 4), np.float32), DType.F32, InvalidShape),
        (np.zeros((9, 4), np.float32), DType.F32, TooManyRows),
        (np.zeros((0, 4), np.float32), DType.F32, TooManyRows),
        (SimpleNamespace(), DType.F32, InvalidDtype),
    ],
)
def test_refuses_what_would_lose_values_or_does_not_fit(
    value: Any, dtype: DType, error: type[Exception]
) -> None:
    with pytest.raises(error):
        prepare(value, one(dtype, 4))


def test_a_refusal_says_which_shapes_would_do() -> None:
    with pytest.raises(InvalidShape, match=r"'x' has shape \[5\], wanted is \[rows, 4\] or \[4\]"):
        prepare(np.zeros(5, np.float32), F4)


def test_inputs_are_put_in_the_models_order() -> None:
    prepared = prepare({"b": [7, 8], "a": [[1, 2], [3, 4]]}, PAIR)
    assert [tensor.name for tensor in prepared.tensors] == ["a", "b"]
    assert prepared.nbytes == 24


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([1, 2], r"2 inputs \(a, b\)"),
        ({"a": [[1, 2]]}, r"missing \['b'\]"),
        ({"a": [[1, 2]], "b": [1], "c": 1}, r"unknown \['c'\]"),
        ({"a": [[1, 2]], "z": [1]}, r"missing \['b'\] and unknown \['z'\]"),
        ({"a": [[1, 2]], "b": [1, 2]}, r"rows: \{'a': 1, 'b': 2\}"),
        ({"a": [1, 2], "b": [1]}, "disagree"),
    ],
)
def test_says_what_is_wrong_with_a_set_of_inputs(inputs: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        prepare(inputs, PAIR)


@pytest.mark.parametrize(
    ("value", "rows", "single", "elements"),
    [
        ("häh", 1, True, ["häh".encode()]),
        (b"\0\xff", 1, True, [b"\0\xff"]),
        (bytearray(b"ab"), 1, True, [b"ab"]),
        (["a", b"bc"], 2, False, [b"a", b"bc"]),
        (("a",), 1, False, [b"a"]),
        (np.array(["a", "bc"]), 2, False, [b"a", b"bc"]),
        (np.array([b"a", "bc"], object), 2, False, [b"a", b"bc"]),
        ("", 1, True, [b""]),
    ],
)
def test_text_comes_as_str_bytes_lists_and_arrays(
    value: Any,
    rows: int,
    single: bool,  # noqa: FBT001
    elements: list[bytes],
) -> None:
    prepared = prepare(value, TEXT)
    assert (prepared.rows, prepared.single) == (rows, single)
    assert bytes(prepared.tensors[0].data) == encode_bytes(elements)


def test_rows_of_several_elements_come_as_nested_lists() -> None:
    signature = one(DType.BYTES, 2)
    batch = prepare([["a", "b"], ["c", "d"], ["e", "f"]], signature)
    assert (batch.rows, batch.single, batch.tensors[0].dims) == (3, False, (3, 2))
    row = prepare(["a", "b"], signature)
    assert (row.rows, row.single, row.tensors[0].dims) == (1, True, (1, 2))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (5, InvalidDtype),
        (["a", 5], InvalidDtype),
        ([["a"], "b"], InvalidShape),
        ([["a"]], InvalidShape),
        ([], TooManyRows),
    ],
)
def test_refuses_what_is_not_text(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        prepare(value, TEXT)


@pytest.mark.parametrize(
    ("inputs", "dims"),
    [
        (np.zeros((3, 4), np.float32), (3, 4)),
        (np.zeros(4, np.float32), (1, 4)),
        ("text", (1,)),
        (["a", "b"], (2,)),
        ({"x": np.zeros((3, 4), np.float32)}, (3, 4)),
    ],
)
def test_guesses_what_arrays_and_text_say_about_themselves(inputs: Any, dims: tuple[int, ...]) -> None:
    guessed = guess(inputs)
    assert guessed is not None
    assert guessed.tensors[0].dims == dims


@pytest.mark.parametrize(
    "inputs",
    [
        [1.0, 2.0],
        5,
        np.float32(3),
        np.zeros((0, 4), np.float32),
        np.zeros((4, 4), np.float32).T,
        np.zeros(4, np.complex128),
        [],
        ["a", 5],
        {},
        {"a": np.zeros((2, 2), np.float32), "b": np.zeros((3, 2), np.float32)},
        {"a": np.zeros(2, np.float32), "b": [1]},
        {"no name": np.zeros(2, np.float32)},
        {5: np.zeros(2, np.float32)},
    ],
)
def test_does_not_guess_where_it_cannot_know(inputs: Any) -> None:
    assert guess(inputs) is None


@given(
    rows=st.integers(1, 5),
    row=st.lists(st.integers(1, 4), max_size=3),
    code=st.sampled_from(["?", "u1", "i2", "u4", "i8", "f2", "f4", "f8"]),
    single=st.booleans(),
)
def test_a_described_guess_is_taken_exactly_if_it_says_what_the_confirmed_inputs_say(
    rows: int,
    row: list[int],
    code: str,
    single: bool,  # noqa: FBT001
) -> None:
    value = np.ones(row if single else [rows, *row], code)
    signature = one(DType.parse(code), *row)
    confirmed, guessed = prepare(value, signature), guess(value)
    if guessed is None:
        assert not value.ndim
        return
    fault = check_request(signature, guessed.rows, guessed.nbytes, guessed.describe())
    assert (fault is None) == guessed.agrees_with(confirmed)
    if fault is None:
        assert (guessed.rows, guessed.single) == (confirmed.rows, confirmed.single)


def test_a_guess_that_names_its_tensor_agrees_only_with_that_name() -> None:
    value = np.zeros((2, 4), np.float32)
    named, other = guess({"x": value}), guess({"z": value})
    assert named is not None and other is not None  # noqa: PT018
    assert named.agrees_with(prepare(value, F4))
    assert not other.agrees_with(prepare(value, F4))


def test_columns_are_always_batched() -> None:
    columns, rows = prepare_columns({"a": np.zeros((7, 2), np.float32), "b": range(7)}, PAIR)
    assert rows == 7
    assert [column.shape for column in columns] == [(7, 2), (7,)]
    with pytest.raises(InvalidShape):
        prepare_columns(np.zeros(4, np.float32), F4)
    with pytest.raises(InvalidArgument, match=r"rows: \[7, 6\]"):
        prepare_columns({"a": np.zeros((7, 2), np.float32), "b": range(6)}, PAIR)


def test_there_may_be_no_columns_at_all() -> None:
    assert prepare_columns(np.zeros((0, 4), np.float32), F4)[1] == 0
    assert prepare_columns([], TEXT)[1] == 0
