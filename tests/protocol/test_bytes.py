import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioserve_protocol import (
    ErrorCode,
    Limits,
    RemoteProtocolError,
    check_bytes_tensor,
    encode_bytes,
    encode_bytes_fast,
)


def elements_of(payload: bytes, count: int, *, fast: bool, exact: bool = False) -> list[bytes]:
    offsets, lengths, used = check_bytes_tensor(memoryview(payload), count, fast=fast, exact=exact)
    assert used <= len(payload)
    assert offsets.dtype == lengths.dtype == np.uint32
    return [payload[a : a + n] for a, n in zip(offsets.tolist(), lengths.tolist(), strict=True)]


@given(st.lists(st.binary(max_size=20), max_size=12), st.binary(max_size=9))
def test_both_forms_give_back_the_elements(elements: list[bytes], tail: bytes) -> None:
    for fast, encode in ((False, encode_bytes), (True, encode_bytes_fast)):
        data = encode(elements)
        assert elements_of(data, len(elements), fast=fast, exact=True) == elements
        assert elements_of(data + tail, len(elements), fast=fast) == elements


def test_the_two_forms_on_the_wire() -> None:
    assert encode_bytes([b"ab", b""]) == bytes.fromhex("02000000 6162 00000000")
    assert encode_bytes_fast([b"ab", b""]) == bytes.fromhex("00000000 02000000 02000000 6162")


@pytest.mark.parametrize(
    "payload, count, fast, message",
    [
        (b"\1\0\0", 1, False, "element 0 has no length"),
        (encode_bytes([b"ab"])[:-1], 1, False, "element 0 runs over the end"),
        (b"\xff\xff\xff\xff", 1, False, "runs over"),
        (encode_bytes([b"ab"]), 2, False, "element 1 has no length"),
        (bytes(7), 1, True, "too short for 2 offsets"),
        (b"\1\0\0\0\2\0\0\0ab", 1, True, "do not start with 0"),
        (b"\0\0\0\0\2\0\0\0\1\0\0\0ab", 2, True, "do not ascend"),
        (b"\0\0\0\0\3\0\0\0ab", 1, True, "last offset runs over"),
    ],
)
def test_malformed_tensors(payload: bytes, count: int, fast: bool, message: str) -> None:  # noqa: FBT001
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        check_bytes_tensor(memoryview(payload), count, fast=fast)
    assert caught.value.code == ErrorCode.INVALID_BYTES


def test_a_tensor_of_known_size_must_be_filled() -> None:
    with pytest.raises(RemoteProtocolError, match="take 4 bytes, the tensor has 8"):
        check_bytes_tensor(memoryview(bytes(8)), 1, fast=False, exact=True)


def test_the_number_of_elements_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="65537 elements"):
        check_bytes_tensor(memoryview(b""), 65_537, fast=False)
    with pytest.raises(RemoteProtocolError, match="2 elements"):
        check_bytes_tensor(memoryview(b""), 2, fast=True, limits=Limits(max_bytes_elements=1))


@given(st.binary(max_size=60), st.integers(0, 8), st.booleans())
def test_arbitrary_bytes_give_elements_inside_or_an_error(payload: bytes, count: int, fast: bool) -> None:  # noqa: FBT001
    try:
        offsets, lengths, used = check_bytes_tensor(memoryview(payload), count, fast=fast)
    except RemoteProtocolError as error:
        assert error.code == ErrorCode.INVALID_BYTES  # noqa: PT017 - one of two good outcomes
    else:
        assert used <= len(payload)
        assert (offsets.astype(int) + lengths.astype(int)).max(initial=0) <= used
