import numpy as np
import pytest

from trioserve_protocol import DType

SIZES = [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2]


def test_numbers_and_sizes() -> None:
    assert [int(dtype) for dtype in DType] == list(range(1, 15))
    assert [dtype.itemsize for dtype in DType] == SIZES


@pytest.mark.parametrize("dtype", DType)
def test_every_accepted_name_leads_back(dtype: DType) -> None:
    assert DType.parse(dtype.label) is dtype
    for name in dtype.names:
        assert DType.parse(f" {name.upper()} ") is dtype


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in {DType.BYTES, DType.BF16}])
def test_numpy_spellings_mean_what_they_mean_in_numpy(dtype: DType) -> None:
    assert dtype.numpy is not None
    assert DType.parse(dtype.numpy.str) is dtype
    assert DType.parse(dtype.numpy.name) is dtype
    assert np.dtype(dtype.numpy).itemsize == dtype.itemsize


def test_bytes_has_no_numpy_type_and_bf16_travels_as_its_bits() -> None:
    assert DType.BYTES.numpy is None
    assert DType.BF16.numpy == np.uint16


@pytest.mark.parametrize("text", ["f32", "", "complex64", "<", "f16", ">f4"])
def test_unknown_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown dtype"):
        DType.parse(text)
